"""The parts of ``tools/bench_peers.py``."""
