#!/bin/sh
# Repeat the small model: sh run_small.sh DATA OUT UNTIL [THEN_UNTIL LAST_UNTIL OWN_UNTIL]
#   DATA   folder with corpora/ and models/stories260K/ (see README.md)
#   OUT    folder for everything that is made
#   UNTIL  when training ends: HH:MM (UTC, today) or seconds since the epoch
#   THEN_UNTIL  when the second run ends, which goes on from the first by go_on.toml
#   LAST_UNTIL  when the third run ends, which goes on from the second by end.toml
#   OWN_UNTIL  when a fourth run ends, which goes on from the third by own.toml: a trial, not shipped
set -eu
data=$1 out=$2 until=$3 then_until=${4:-} last_until=${5:-} own_until=${6:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
export PYTHONPATH="$root:$root/export${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
stories=$data/corpora/tinystories
# Keep freed memory: page faults cost a third of the speed. Let waiting threads sleep.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
export MALLOC_TOP_PAD_=67108864 OMP_WAIT_POLICY=passive

mkdir -p "$out"
[ -e "$out/teacher.txt" ] || "$python" -m tools.train_default.teacher --model "$data/models/stories260K" \
    --words "$stories/train.txt" --count 45000 --seed 1 --out "$out/teacher.txt"
"$python" -m tools.train_default.corpus text --corpora "$data/corpora" --teacher "$out/teacher.txt" \
    --out "$out/text"
"$python" -m tools.train_default.tokenizer --text "$out/text/real.jsonl" "$out/text/chat.jsonl" \
    "$out/text/books.jsonl" --vocab-size 4096 --out "$out/tokenizer"
"$python" -m tools.train_default.corpus tokens --text "$out/text" --tokenizer "$out/tokenizer/tokenizer.json" \
    --out "$out/tokens"
"$python" -m tools.train_default.train --tokens "$out/tokens" --tokenizer "$out/tokenizer" \
    --held-out "$stories/valid.txt" --run "$out/run" --hf "$out/hf" --until "$until"
go_on() { # FROM TO RECIPE UNTIL
    "$python" -m tools.train_default.train --tokens "$out/tokens" --tokenizer "$out/tokenizer" \
        --held-out "$stories/valid.txt" --run "$2" --hf "$out/hf" \
        --start-from "$1/checkpoint.pt" --recipe "$here/recipes/$3" --until "$4"
}
describe() {
    "$python" -m tools.train_default.describe --text "$out/text" --tokens "$out/tokens" \
        --held-out "$stories/valid.txt" --hf "$out/hf" "$@"
}
describe --run "$out/run" --out "$out/recipe.toml"
if [ -n "$then_until" ]; then
    mv "$out/recipe.toml" "$out/recipe_first.toml"
    go_on "$out/run" "$out/run_on" go_on.toml "$then_until"
    go_on "$out/run_on" "$out/run_end" end.toml "$last_until"
    describe --run "$out/run_end" --recipe "$here/recipes/go_on.toml" \
        --earlier "$out/recipe_first.toml" --out "$out/recipe.toml"
fi
if [ -n "$own_until" ]; then
    mv "$out/recipe.toml" "$out/recipe_third.toml"
    go_on "$out/run_end" "$out/run_own" own.toml "$own_until"
    describe --run "$out/run_own" --recipe "$here/recipes/own.toml" \
        --earlier "$out/recipe_third.toml" --out "$out/recipe.toml"
fi
"$python" -m edgerun export "$out/hf" -o "$out/bundle" --weights ternary --group-size 256 --force
"$python" -m tools.train_default.evaluate samples --bundle "$out/bundle" --out "$out/samples.md"
