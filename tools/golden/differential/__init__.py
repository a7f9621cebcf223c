"""Random tiny checkpoints of every family, compared with transformers: see docs/fuzzing.md."""
