#!/bin/sh
# Repeat the default model: sh run_all.sh DATA OUT MODEL
#   DATA   folder with corpora/ (see README.md)
#   OUT    folder for everything that is made; the same command goes on where it was ended
#   MODEL  SmolLM2-135M-Instruct, whatever edgerun export takes
# TEACHER_TOKENS says how much the teacher reads; TOKENS, HEALED_TOKENS,
# MORE_TOKENS, OWN_TOKENS, LAST_TOKENS, WIDE_TOKENS, DRY_TOKENS and END_TOKENS up to where the model's runs go.
# TRIAL=1 goes through all steps with little data and few tokens, in OUT/trial.
set -eu
data=$1 out=$2 model=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/steps.sh"
hf=$out/hf

prepare
make "$out/initial" from_teacher.student --teacher "$out/teacher" --recipe "$recipes/taught.toml"
run taught "${TOKENS:-$(amount 1.05e7 4e3)}" --initial "$out/initial"
run taught_heal "${HEALED_TOKENS:-$(amount 1.26e7 6e3)}"
run taught_more "${MORE_TOKENS:-$(amount 1.44e7 8e3)}"
run taught_own "${OWN_TOKENS:-$(amount 1.95e7 1e4)}" --teacher "$out/teacher"
run taught_last "${LAST_TOKENS:-$(amount 2.1e7 1.2e4)}" --teacher "$out/teacher"
run taught_wide "${WIDE_TOKENS:-$(amount 2.49e7 1.4e4)}" --teacher "$out/teacher"
# What this run forgot of small talk comes back with a tenth of the weights before it. The model as it is then goes on, and
# says what should have been said.
last=$out/runs/taught_last/checkpoint.pt
step save --checkpoint "$before/checkpoint.pt" "$last" --shares 0.9 0.1 --tokenizer "$out/cut" --out "$out/as_it_was"
run taught_dry "${DRY_TOKENS:-$(amount 2.74e7 1.6e4)}" "$last" --shares 0.9 0.1 --teacher "$out/as_it_was"
run taught_dry_end "${END_TOKENS:-$(amount 2.94e7 1.8e4)}" --teacher "$out/as_it_was"
step save --checkpoint "$before/checkpoint.pt" --tokenizer "$out/cut" --out "$hf"
cp "$before/recipe.toml" "$out/recipe.toml"
bundle "$out/bundle" --weights ternary --group-size 256
