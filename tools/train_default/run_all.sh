#!/bin/sh
# Repeat the default model: sh run_all.sh DATA OUT MODEL
#   DATA   folder with corpora/ (see README.md)
#   OUT    folder for everything that is made; the same command goes on where it was ended
#   MODEL  SmolLM2-135M-Instruct, whatever edgerun export takes
# TEACHER_TOKENS says how much the teacher reads; TOKENS, HEALED_TOKENS,
# MORE_TOKENS, OWN_TOKENS, LAST_TOKENS and END_TOKENS up to where the model's runs go.
set -eu
data=$1 out=$2 model=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
export PYTHONPATH="$root:$root/export${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
stories=$data/corpora/tinystories recipe=$here/recipes/taught.toml
# Keep freed memory: page faults cost a third of the speed. Let waiting threads sleep.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
export MALLOC_TOP_PAD_=67108864 OMP_WAIT_POLICY=passive
step() { "$python" -m "tools.train_default.$@"; }

mkdir -p "$out"
if [ ! -e "$out/cut/model.safetensors" ]; then
    step corpus text --corpora "$data/corpora" --out "$out/made"
    step from_teacher.cut --model "$model" --documents 20000 --out "$out/cut" \
        --text "$out/made/real.jsonl" "$out/made/brief.jsonl" "$out/made/books.jsonl"
fi
# The teacher reads three chats of every story, the model one.
for part in taught read; do
    [ -e "$out/$part/tokens/real.npz" ] && continue
    mkdir -p "$out/$part/text"
    cp "$out/made/real.jsonl" "$out/made/books.jsonl" "$out/made/asked.jsonl" "$out/$part/text"
    if [ $part = read ]; then
        step corpus text --corpora "$data/corpora" --rounds 1 --out "$out/made_once"
        cp "$out/made_once/asked.jsonl" "$out/made/brief.jsonl" "$out/made/wide.jsonl" "$out/$part/text"
    fi
    step corpus tokens --text "$out/$part/text" --tokenizer "$out/cut/tokenizer.json" --out "$out/$part/tokens"
done
step from_teacher.finetune --tokens "$out/taught/tokens" --model "$out/cut" --held-out "$stories/valid.txt" \
    --run "$out/taught/run" --hf "$out/teacher" --until-tokens "${TEACHER_TOKENS:-4.7e5}"
step from_teacher.targets --model "$out/teacher" --tokens "$out/read/tokens" --sources real asked --out "$out/targets"
[ -e "$out/initial" ] || step from_teacher.student --teacher "$out/teacher" --recipe "$recipe" --out "$out/initial"
train() {
    step train --tokens "$out/read/tokens" --tokenizer "$out/initial" --held-out "$stories/valid.txt" \
        --targets "$out/targets" --hf "$out/hf" "$@"
}
describe() {
    step describe --text "$out/read/text" --tokens "$out/read/tokens" --held-out "$stories/valid.txt" --hf "$out/hf" "$@"
}
# RUN TOKENS [OPTIONS]: by recipes/RUN.toml, from where the run before it ended; recipe.toml has them all.
before=
run() {
    folder=$out/runs/$1 recipe=$here/recipes/$1.toml tokens=$2 && shift 2
    train --recipe "$recipe" --run "$folder" --until-tokens "$tokens" ${before:+--start-from "$before/checkpoint.pt"} "$@"
    describe --run "$folder" --recipe "$recipe" --out "$folder/recipe.toml" ${before:+--earlier "$before/recipe.toml"}
    before=$folder
}
run taught "${TOKENS:-1.05e7}" --initial "$out/initial"
run taught_heal "${HEALED_TOKENS:-1.26e7}"
run taught_more "${MORE_TOKENS:-1.44e7}"
run taught_own "${OWN_TOKENS:-1.95e7}" --teacher "$out/teacher"
run taught_last "${LAST_TOKENS:-2.1e7}" --teacher "$out/teacher"
run taught_wide "${END_TOKENS:-2.49e7}" --teacher "$out/teacher"
# What the last run forgot of small talk comes back.
step save --checkpoint "$before/checkpoint.pt" "$out/runs/taught_last/checkpoint.pt" --shares 0.9 0.1 \
    --tokenizer "$out/initial" --out "$out/hf"
describe --run "$before" --recipe "$here/recipes/taught_wide.toml" --earlier "$out/runs/taught_last/recipe.toml" \
    --out "$out/recipe.toml" --note "The model has 0.9 of this run's weights and 0.1 of those before it."
"$python" -m edgerun export "$out/hf" -o "$out/bundle" --weights ternary --group-size 256 --force
step evaluate samples --bundle "$out/bundle" --out "$out/samples.md"
step evaluate following --bundle "$out/bundle"
