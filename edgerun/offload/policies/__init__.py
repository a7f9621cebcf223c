"""Which expert leaves a cache first: one policy a file, found by its name."""
