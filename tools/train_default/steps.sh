# What run_all.sh, run_experts.sh and run_small.sh share; they source it with DATA, OUT and `here` set.
# A step that is ended goes on, or begins anew, with the same command; what is finished stays.
root=$(dirname "$(dirname "$here")")
export PYTHONPATH="$root:$root/export${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
# Keep freed memory: page faults cost a third of the speed. Let waiting threads sleep.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
export MALLOC_TOP_PAD_=67108864 OMP_WAIT_POLICY=passive

# A signal ends the step that runs, with a checkpoint if it has any, and then the script.
child=
trap 'trap "" INT TERM; [ -z "$child" ] || { kill "$child"; wait "$child"; } 2>/dev/null || :; exit 143' INT TERM
in_child() {
    "$@" &
    child=$!
    wait "$child" || { code=$?; echo "ended with exit code $code: $*" >&2; exit "$code"; }
    child=
}
step() { in_child "$python" -m "tools.train_default.$@"; }

# TRIAL=1: every step with little data and few tokens, in OUT/trial; the model is worth nothing.
recipes=$here/recipes
trial=${TRIAL:+yes}
if [ "$trial" ]; then
    out=$out/trial recipes=$out/recipes
    mkdir -p "$recipes" "$out/data/corpora/tinystories" "$out/data/corpora/stories"
    head -n 600 "$data/corpora/tinystories/train.txt" > "$out/data/corpora/tinystories/train.txt"
    head -n 40 "$data/corpora/tinystories/valid.txt" > "$out/data/corpora/tinystories/valid.txt"
    for name in fables_mit storybooks_ccby fairytaleqa; do
        head -n 60 "$data/corpora/stories/$name.jsonl" > "$out/data/corpora/stories/$name.jsonl"
    done
    for file in "$here"/recipes/*.toml; do
        {
            echo "batch_tokens = 2048"
            echo "own_replies = 8"
            sed -e '/^batch_tokens = /d' -e '/^own_replies = /d' "$file"
        } > "$recipes/${file##*/}"
    done
fi
corpora=$data/corpora
[ -z "$trial" ] || corpora=$out/data/corpora
stories=$corpora/tinystories
mkdir -p "$out"

# USUALLY TRIAL: the one that counts.
amount() { if [ "$trial" ]; then echo "$2"; else echo "$1"; fi; }

# FOLDER COMMAND...: a step that makes a folder, which has its name when it is whole.
make() {
    folder=$1 && shift
    [ -e "$folder" ] && return
    step "$@" --out "$folder.part"
    mv "$folder.part" "$folder"
}

# FOLDER TOKENS: whether a run has come to so many; another number makes it go on.
finished() { [ "$(cat "$1/finished" 2>/dev/null)" = "$2" ]; }

# What every student reads: text in the teacher's spelling, and what the teacher says of it.
prepare() {
    make "$out/made" corpus text --corpora "$corpora"
    # The teacher reads three chats of every story, a student one.
    make "$out/made_once" corpus text --corpora "$corpora" --rounds 1
    make "$out/cut" from_teacher.cut --model "$model" --documents 20000 \
        --text "$out/made/real.jsonl" "$out/made/brief.jsonl" "$out/made/books.jsonl"
    mkdir -p "$out/taught/text" "$out/read/text"
    cp "$out/made/real.jsonl" "$out/made/books.jsonl" "$out/made/asked.jsonl" "$out/taught/text"
    cp "$out/made/real.jsonl" "$out/made/books.jsonl" "$out/made_once/asked.jsonl" \
        "$out/made/brief.jsonl" "$out/made/wide.jsonl" "$out/read/text"
    for part in taught read; do
        make "$out/$part/tokens" corpus tokens --text "$out/$part/text" --tokenizer "$out/cut/tokenizer.json"
    done
    teacher_tokens=${TEACHER_TOKENS:-$(amount 4.7e5 1)}
    if ! finished "$out/taught/run" "$teacher_tokens"; then
        step from_teacher.finetune --tokens "$out/taught/tokens" --model "$out/cut" --held-out "$stories/valid.txt" \
            --run "$out/taught/run" --hf "$out/teacher" --until-tokens "$teacher_tokens"
        echo "$teacher_tokens" > "$out/taught/run/finished"
    fi
    step from_teacher.targets --model "$out/teacher" --tokens "$out/read/tokens" --sources real asked --out "$out/targets"
}

describe() {
    step describe --text "$out/read/text" --tokens "$out/read/tokens" --held-out "$stories/valid.txt" --hf "$hf" "$@"
}

# RUN TOKENS [CHECKPOINTS] [OPTIONS]: by recipes/RUN.toml, from where the run before it ended, or the average of its
# checkpoint and others (--shares); recipe.toml has them all.
before=
run() {
    folder=$out/runs/$1 recipe=$recipes/$1.toml tokens=$2 && shift 2
    if ! finished "$folder" "$tokens"; then
        step train --tokens "$out/read/tokens" --tokenizer "$out/cut" --held-out "$stories/valid.txt" \
            --targets "$out/targets" --hf "$hf" --recipe "$recipe" --run "$folder" --until-tokens "$tokens" \
            ${before:+--start-from "$before/checkpoint.pt"} "$@"
        describe --run "$folder" --recipe "$recipe" --out "$folder/recipe.toml" ${before:+--earlier "$before/recipe.toml"}
        echo "$tokens" > "$folder/finished"
    fi
    before=$folder
}

# BUNDLE OPTIONS: exports the model, has it tell stories, and counts what they keep to.
bundle() {
    bundle=$1 && shift
    in_child "$python" -m edgerun_export "$hf" -o "$bundle" --force "$@"
    step evaluate samples --bundle "$bundle" --out "${bundle%/*}/samples.md"
    step evaluate following --bundle "$bundle"
}
