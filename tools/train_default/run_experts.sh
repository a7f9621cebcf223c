#!/bin/sh
# Make the mixture of experts that learns from the teacher: sh run_experts.sh DATA OUT MODEL
#   DATA, OUT and MODEL as of run_all.sh, whose text, teacher and targets are taken where OUT has them
# EXPERTS_TOKENS says how much it reads. TRIAL=1 goes through all steps with little data, in OUT/trial.
set -eu
data=$1 out=$2 model=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/steps.sh"
hf=$out/experts/hf

prepare
mkdir -p "$out/experts"
make "$out/experts/initial" from_teacher.student --teacher "$out/teacher" --recipe "$recipes/taught_experts.toml"
run taught_experts "${EXPERTS_TOKENS:-$(amount 1.2e7 4e3)}" --initial "$out/experts/initial"
cp "$before/recipe.toml" "$out/experts/recipe.toml"
bundle "$out/experts/bundle" --weights ternary --group-size 256 --head-weights int4 --embedding-weights int4
