"""Measures moving keys and values between float32 and the store: microseconds a token.

    python -m tools.bench.transfer [--codecs NAME ...] [--tokens N ...] [--layers N] [--heads N]

All layers of a model are written and read, a block of tokens each; the defaults are BitNet-2B's
shape. Tables go to standard error, one line of JSON to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np

from edgerun.backends.cpu.transfer import NativeTransfer
from edgerun.state import SequenceStore, same_attention
from edgerun.state.paged import Transfer

WARM_UPS, RUNS = 2, 15
TRANSFERS: dict[str, Callable[[], Transfer | None]] = {
    "kernels": NativeTransfer,
    "numpy": lambda: None,
}


def best(call: Callable[[], None]) -> float:
    """Shortest time of a call, in seconds."""
    for _ in range(WARM_UPS):
        call()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(codec: str, tokens: int, given: argparse.Namespace, transfer: Transfer | None) -> dict:
    """Microseconds a token over all layers."""
    states = same_attention(given.layers, given.heads, given.head_dim, codec)
    store = SequenceStore(states, tokens, transfer=transfer)
    slot = store.open()
    store.reserve(slot, tokens)
    shape = (2, tokens, given.heads, given.head_dim)
    keys, values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def write() -> None:
        for state in states:
            store.write_block(state.name, slot, 0, (keys, values))

    def read() -> None:
        for state in states:
            store.read_block(state.name, slot, 0, tokens)

    return {"write_us": best(write) / tokens * 1e6, "read_us": best(read) / tokens * 1e6}


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(description="Measures blocks of keys and values.")
    parser.add_argument("--codecs", nargs="+", default=["fp32", "fp16", "int8"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 64, 512])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--head-dim", type=int, default=128)
    given = parser.parse_args()
    rows = []
    for codec in given.codecs:
        for tokens in given.tokens:
            for name, make in TRANSFERS.items():
                figures = measure(codec, tokens, given, make())
                rows.append({"codec": codec, "tokens": tokens, "by": name, **figures})
                print(
                    f"{codec} {tokens:5} tokens by {name:7}: write {figures['write_us']:7.1f}, "
                    f"read {figures['read_us']:7.1f} us a token",
                    file=sys.stderr,
                )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
