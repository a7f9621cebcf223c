"""The machine that the helper runs on: which it is, what its owner allows, how it is changed."""
