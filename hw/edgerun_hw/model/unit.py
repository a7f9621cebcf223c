"""What attention on the overlay's unit costs a token or a prompt, with the rates of a profile.

Terms are those of the native host (``backend/native``): it copies new keys and values to where the
unit reads them, rounds queries, takes results, and computes a share of them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgerun_hw.model.attention import attention_bytes, attention_commands, attention_cycles
from edgerun_hw.model.profile import Profile
from edgerun_hw.model.tokens import ModelShape, Term
from edgerun_hw.overlay.attention_layout import SCALE_BYTES, KvLayout
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.register_map import BEAT_BYTES, KV_TOKENS

# Of how many commands one is computed again (backend/attention.py), on one of the cores.
CHECK_EVERY, CORES = 16, 4
LINE_BYTES = 64  # of the processor's caches


def row_bytes(shape: ModelShape) -> int:
    """Bytes of the cache lines of a layer's copy that one token's keys and values change.

    All of the keys' beats have an element of it; of the values' it has one in each 16.
    """
    lines = shape.head_dim // BEAT_BYTES * LINE_BYTES
    return shape.kv_heads * (SCALE_BYTES + shape.head_dim * KV_TOKENS + lines)


def unit_terms(
    shape: ModelShape,
    geometry: Geometry,
    profile: Profile,
    clock_mhz: float,
    contexts: Sequence[int],
) -> list[Term]:
    """Terms of rows of one sequence, together.

    The unit's streams are as long as a layer's matrices, so they are taken to come as fast.

    Args:
        shape: of the model.
        geometry: of the overlay, which has the unit.
        profile: of the board.
        clock_mhz: of the overlay.
        contexts: tokens that each row sees, increasing.
    """
    heads, group = shape.kv_heads, shape.heads // shape.kv_heads
    commands = attention_commands(group, len(contexts), geometry.attention)
    queries = len(contexts) * group
    last = [min(queries, (n + 1) * geometry.attention) - 1 for n in range(commands)]
    seen = [contexts[query // group] for query in last]
    rate = profile["body_gb_per_s"] * 1e9
    cycles = [attention_cycles(heads, shape.head_dim, tokens) for tokens in seen]
    sizes = [attention_bytes(heads, shape.head_dim, tokens) for tokens in seen]
    times = [max(c / (clock_mhz * 1e6), n / rate) for c, n in zip(cycles, sizes, strict=True)]
    layers, count = shape.layers, shape.layers * commands
    rows = layers * len(contexts)
    basis = (
        f"{count} times the longer of {sum(cycles) // commands} cycles and "
        f"{sum(sizes) / commands / 1e6:.2f} MB at {profile.quote('body_gb_per_s')}"
    )
    total = layers * sum(times), layers * sum(cycles), layers * sum(sizes)
    return [
        Term("attention (fabric)", *total, basis),
        each_step("attention: launches", count, profile, "launch_us"),
        _rows(shape, geometry, profile, len(contexts)),
        each_step("attention: queries in", rows, profile, "activations_us_per_step"),
        each_step("attention: results out", rows, profile, "results_us_per_step"),
        _again(shape, profile, seen, times),
    ]


def _rows(shape: ModelShape, geometry: Geometry, profile: Profile, rows: int) -> Term:
    """New keys and values: lines are fetched and written back, those of many rows once."""
    layout = KvLayout(shape.kv_heads, shape.head_dim)
    changed = min(rows * row_bytes(shape), geometry.ports * layout.port_bytes(rows))
    nbytes = 2 * shape.layers * changed
    return Term(
        "attention: keys, values in",
        nbytes / (profile["lines_gb_per_s"] * 1e9),
        0,
        nbytes,
        f"{nbytes / 1e6:.2f} MB of cache lines, in and out, at {profile.quote('lines_gb_per_s')}",
    )


def _again(
    shape: ModelShape, profile: Profile, seen: Sequence[int], times: Sequence[float]
) -> Term:
    """One head of one command in ``CHECK_EVERY`` again, where that is longer than the unit."""
    figure = "attention_int8_gmac_per_s"
    rate = profile[figure] * 1e9 / CORES
    late = [
        max(0.0, 2 * shape.head_dim * tokens / rate - time)
        for tokens, time in zip(seen, times, strict=True)
    ]
    return Term(
        "attention: results again",
        shape.layers * sum(late) / CHECK_EVERY,
        basis=f"one head of one command in {CHECK_EVERY}, on one of {CORES} cores at "
        f"{profile.quote(figure)}, where it takes longer than the unit",
    )


def each_step(name: str, steps: int, profile: Profile, figure: str) -> Term:
    """A term that every step costs alike."""
    seconds = steps * profile[figure] * 1e-6
    return Term(name, seconds, basis=f"{steps} times {profile.quote(figure)}")
