#!/bin/sh
# Repeat the small model: sh run_small.sh DATA OUT UNTIL [THEN_UNTIL LAST_UNTIL OWN_UNTIL]
#   DATA   folder with corpora/ and models/stories260K/ (see README.md)
#   OUT    folder for everything that is made; the same command goes on where it was ended
#   UNTIL  when training ends: HH:MM (UTC, today) or seconds since the epoch
#   THEN_UNTIL  when the second run ends, which goes on from the first by go_on.toml
#   LAST_UNTIL  when the third run ends, which goes on from the second by end.toml
#   OWN_UNTIL  when a fourth run ends, which goes on from the third by own.toml: a trial, not shipped
# TRIAL=1 goes through all steps with little data, in OUT/trial, and ends by tokens, whatever times are named.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=$1 out=$2
. "$here/steps.sh"
clock=--until
if [ "$trial" ]; then
    set -- "$data" "$out" 8e3 1e4 1.2e4 1.4e4
    clock=--until-tokens
fi
until=$3 then_until=${4:-} last_until=${5:-} own_until=${6:-}
hf=$out/hf

make "$out/teacher.txt" teacher --model "$data/models/stories260K" --words "$data/corpora/tinystories/train.txt" \
    --count "$(amount 45000 1000)" --seed 1
make "$out/text" corpus text --corpora "$corpora" --teacher "$out/teacher.txt"
make "$out/tokenizer" tokenizer --text "$out/text/real.jsonl" "$out/text/chat.jsonl" "$out/text/books.jsonl" --vocab-size 4096
make "$out/tokens" corpus tokens --text "$out/text" --tokenizer "$out/tokenizer/tokenizer.json"
# FOLDER UNTIL [RECIPE]: from where the run before it ended.
timed() {
    folder=$out/$1 end=$2 recipe=${3:+$recipes/$3.toml}
    if ! finished "$folder" "$end"; then
        step train --tokens "$out/tokens" --tokenizer "$out/tokenizer" --held-out "$stories/valid.txt" \
            --run "$folder" --hf "$hf" "$clock" "$end" ${recipe:+--recipe "$recipe"} \
            ${before:+--start-from "$before/checkpoint.pt"}
        step describe --text "$out/text" --tokens "$out/tokens" --held-out "$stories/valid.txt" --hf "$hf" \
            --run "$folder" --out "$folder/recipe.toml" ${recipe:+--recipe "$recipe"} ${before:+--earlier "$before/recipe.toml"}
        echo "$end" > "$folder/finished"
    fi
    before=$folder
}
timed run "$until"
if [ -n "$then_until" ]; then
    timed run_on "$then_until" go_on
    timed run_end "$last_until" end
fi
if [ -n "$own_until" ]; then
    timed run_own "$own_until" own
fi
cp "$before/recipe.toml" "$out/recipe.toml"
bundle "$out/bundle" --weights ternary --group-size 256
