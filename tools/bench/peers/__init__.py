"""The comparison with other runtimes, ``python -m tools.bench.peers``."""
