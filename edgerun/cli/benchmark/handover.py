"""``edgerun bench --handover``: what keys and values cost between pages and a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgerun.backends.base import Backend
    from edgerun.llm.llm import LLM
    from edgerun.state import AttentionState

STORAGES = ("fp32", "fp16", "int8")
SHAPES = {  # layers, heads of keys and values, elements of each
    "Llama 3.2 1B": (16, 8, 64),
    "BitNet 2B": (30, 5, 128),
}
CALL_TOKENS = 256
PROMPT_TOKENS = 512
SECONDS = 1.0  # for each shape and storage
GOAL = 0.02  # of a prompt's time


def handover_figures(llm: LLM, prompts: Sequence[list[int]]) -> dict[str, Any]:
    """What ``--json`` prints; the names are a contract.

    Args:
        llm: whose shape is measured, and its devices, if prompts go to any.
        prompts: as many as runs, of equal length, without a common beginning; the first warms up.
    """
    from edgerun import __version__
    from edgerun.state import AttentionState, same_attention

    own = [state for state in llm.model.states if isinstance(state, AttentionState)]
    shapes = {"this model": own} | {
        name: list(same_attention(*shape)) for name, shape in SHAPES.items()
    }
    return {
        "edgerun": __version__,
        "model": str(llm.model.path),
        "backends": [backend.name for backend in llm.model.backends],
        "call_tokens": CALL_TOKENS,
        "handover": [
            {"shape": name, **shape_figures(states, storage)}
            for name, states in shapes.items()
            if states
            for storage in STORAGES
        ],
        "prompts": [
            figures
            for backend in llm.model.backends
            if (figures := prompt_figures(llm, backend, prompts)) is not None
        ],
    }


def shape_figures(states: Sequence[AttentionState], storage: str) -> dict[str, Any]:
    """Microseconds a token over all layers, each way, by one thread.

    Beside them stands what copying the float32 rows takes from memory to memory, layer by layer
    too: neither way can be faster where both sides are stored in float32.
    """
    import numpy as np

    from edgerun.backends.cpu.transfer import NativeTransfer
    from edgerun.state import SequenceStore

    stored = [replace(state, codec=storage) for state in states]
    store = SequenceStore(stored, CALL_TOKENS, transfer=NativeTransfer())
    slot, rng = store.open(), np.random.default_rng(0)
    store.reserve(slot, CALL_TOKENS)
    sizes = [(CALL_TOKENS, state.kv_heads) for state in stored]
    dims = [(state.key_dim, state.value_dim) for state in stored]
    rows = [
        tuple(rng.standard_normal((*size, dim), np.float32) for dim in pair)
        for size, pair in zip(sizes, dims, strict=True)
    ]
    out = [tuple(np.zeros_like(part) for part in block) for block in rows]

    def write() -> None:
        for state, block in zip(stored, rows, strict=True):
            store.write_block(state.name, slot, 0, block)

    def read() -> None:
        for state, block in zip(stored, out, strict=True):
            store.read_block(state.name, slot, 0, CALL_TOKENS, block)

    def copy() -> None:
        for target, source in zip(out, rows, strict=True):
            for there, here in zip(target, source, strict=True):
                np.copyto(there, here)

    to_pages, from_pages, copied = (
        round(1e6 * seconds / CALL_TOKENS, 3) for seconds in _least((write, read, copy))
    )
    return {
        "layers": len(stored),
        "kv_heads": stored[0].kv_heads,
        "head_dim": stored[0].key_dim,
        "storage": storage,
        "to_pages_us": to_pages,
        "from_pages_us": from_pages,
        "copy_us": copied,
    }


def _least(calls: Sequence[Callable[[], None]]) -> list[float]:
    """The shortest time of each, in seconds; they take turns, so that other programs hit all."""
    for call in calls:
        call()  # compiles kernels, and takes memory
    least = [inf] * len(calls)
    end = time.perf_counter() + SECONDS
    while inf in least or time.perf_counter() < end:
        for index, call in enumerate(calls):
            began = time.perf_counter()
            call()
            least[index] = min(least[index], time.perf_counter() - began)
    return least


def prompt_figures(
    llm: LLM, backend: Backend, prompts: Sequence[list[int]]
) -> dict[str, Any] | None:
    """The share of prompts' time in which a device waits for keys and values to be moved.

    None if the back-end moves none.
    """
    runs = []
    for prompt in prompts:
        before = backend.handover()
        if before is None:
            return None
        stats = llm.generate(prompt, temperature=0.0, max_tokens=1, ignore_eos=True).stats
        after = backend.handover()
        assert after is not None
        moving, overlapped = (
            after.seconds - before.seconds,
            after.overlapped_s - before.overlapped_s,
        )
        runs.append((stats.prefill_s, moving - overlapped, overlapped))
    prefill, waiting, overlapped = (median(figures) for figures in zip(*runs[1:], strict=True))
    return {
        "device": backend.name,
        "tokens": len(prompts[0]),
        "prefill_s": round(prefill, 9),
        "waiting_s": round(waiting, 9),
        "overlapped_s": round(overlapped, 9),
        "share": round(waiting / prefill, 6),
    }


def handover_lines(figures: dict[str, Any]) -> list[str]:
    """What a person sees."""
    from edgerun.cli.screen.tables import aligned

    lines = [
        f"keys and values in calls of {figures['call_tokens']} tokens, by one thread: us a token",
        "",
        *aligned(
            [
                {
                    "shape": f"{row['shape']}: {row['layers']} x {row['kv_heads']} x "
                    f"{row['head_dim']}",
                    "stored as": row["storage"],
                    "to pages": f"{row['to_pages_us']:.2f}",
                    "out of pages": f"{row['from_pages_us']:.2f}",
                    "copy of float32": f"{row['copy_us']:.2f}",
                }
                for row in figures["handover"]
            ]
        ),
        "",
    ]
    for prompt in figures["prompts"]:
        lines.append(
            f"a prompt of {prompt['tokens']} tokens by {prompt['device']}: "
            f"{1e3 * prompt['prefill_s']:.1f} ms, of which {prompt['share']:.2%} wait for keys and "
            f"values (goal: at most {GOAL:.0%}); {1e3 * prompt['overlapped_s']:.2f} ms more are "
            "moved while the device computes"
        )
    if not figures["prompts"]:
        lines.append(
            "no prompt goes to a device, so there is no share of its time; name one, as in "
            "--place prefill=openvino:CPU"
        )
    return lines
