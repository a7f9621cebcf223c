"""Tokens per second with rates that were measured on a board, in place of ``tokens.py``'s bound.

The fabric's cycles are the same; how fast memory gives weights, how fast the processor attends and
what it does between matrices come from a profile (``profile.py``). Still modelled: the board ran
another design.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgerun_hw.model.attention import (
    attention_bytes,
    attention_commands,
    attention_cycles,
)
from edgerun_hw.model.cycles import PYTHON_HOST_US, Assumptions, capabilities_of
from edgerun_hw.model.profile import Profile
from edgerun_hw.model.tokens import (
    ATTENTIONS,
    HEADS,
    SCREENED,
    SHAPES,
    ModelShape,
    Term,
    fabric_term,
    head_term,
    token_terms,
    tokens_per_second,
)
from edgerun_hw.overlay.geometry import Geometry

LABEL = "modelled: cycles x assumed clock, rates that others measured on a board; no board here"
CONTEXTS = (128, 1024, 4096)
# Bytes an element, and of the scale that each head and token has (edgerun/state/codecs).
STORAGE = {"int8": (1, 4), "fp16": (2, 0)}
HOSTS = ("native", "python")
# A screened product, an error and a norm; rows that 99 of 100 states of the default model need.
BOUND_BYTES, RESCORED_ROWS = 3 * 4, 64


def kv_bytes(shape: ModelShape, context: int, storage: str) -> int:
    """Bytes of the keys and values of ``context`` tokens, scales included."""
    element, scale = STORAGE[storage]
    vector = element * shape.kv_width + scale * shape.kv_heads
    return 2 * shape.layers * context * vector


def attention_macs(shape: ModelShape, context: int) -> int:
    """Multiply-adds of a token that attends to ``context`` tokens: scores, and sums of values."""
    return 2 * shape.layers * shape.heads * shape.head_dim * context


def measured_terms(
    shape: ModelShape,
    geometry: Geometry,
    profile: Profile,
    clock_mhz: float,
    *,
    context: int = 1024,
    head: str = "int8",
    storage: str = "int8",
    host: str = "native",
) -> list[Term]:
    """Every term of a decoded token's time; they follow one another, so they add up.

    Args:
        shape: of the model.
        geometry: of the overlay.
        profile: of the board.
        clock_mhz: of the overlay.
        context: tokens attended to.
        head: weights of the output head, in ``HEADS``.
        storage: of keys and values, in ``STORAGE``.
        host: in ``HOSTS``: native code (``--device board:host=native``), or Python through pynq,
            which multiplies heads whole.
    """
    can = capabilities_of(geometry)
    if host == "python" and head == SCREENED:
        head = "int8"  # only native code screens
    body = _streaming(profile["body_gb_per_s"], clock_mhz)
    late = f"{profile['late_ports_least']:.0%} to {profile['late_ports_most']:.0%}"
    terms = [
        _based(
            fabric_term(step, matrix, 1, matrix[1], can, body, shape.layers),
            f"weights at {profile.quote('body_gb_per_s')}; HP1 and HP2 {late} late, in it",
        )
        for step, matrix in shape.steps().items()
    ]
    streaming = _streaming(profile["head_gb_per_s"], clock_mhz)
    term = head_term(shape, head, can, streaming)
    terms.append(_based(term, f"weights at {profile.quote('head_gb_per_s')}"))
    if head == SCREENED:
        terms.append(_rescoring(shape, profile))
    if geometry.attention and storage == "int8":
        terms += _fabric_attention(shape, geometry, profile, clock_mhz, context)
    else:
        terms.append(_attention(shape, profile, context, storage))
    steps = shape.layers * len(shape.steps()) + 1
    terms.append(_each("launches", steps, profile, "launch_us"))
    return terms + (_native(shape, profile, steps) if host == "native" else [_python(steps)])


def _streaming(gb_per_s: float, clock_mhz: float) -> Assumptions:
    return Assumptions(clock_mhz=clock_mhz, memory_gb_per_s=gb_per_s, efficiency=1.0)


def _based(term: Term, basis: str) -> Term:
    return replace(term, basis=f"{term.basis}; {basis}")


def _attention(shape: ModelShape, profile: Profile, context: int, storage: str) -> Term:
    macs, nbytes = attention_macs(shape, context), kv_bytes(shape, context, storage)
    figure = f"attention_{storage}_gmac_per_s"
    return Term(
        f"attention ({storage} keys and values)",
        macs / (profile[figure] * 1e9),
        0,
        nbytes,
        f"{macs / 1e6:.1f} M multiply-adds on the processor at {profile.quote(figure)}",
    )


def _fabric_attention(
    shape: ModelShape, geometry: Geometry, profile: Profile, clock_mhz: float, context: int
) -> list[Term]:
    """Attention on the overlay's unit: a layer's heads are a command, or several (``commands``).

    Its streams are as long as a layer's matrices, so they are taken to come as fast, no faster.
    """
    heads = shape.kv_width // shape.head_dim
    commands = attention_commands(shape.heads // heads, 1, geometry.attention)
    cycles = attention_cycles(heads, shape.head_dim, context)
    nbytes = attention_bytes(heads, shape.head_dim, context)
    count, rate = shape.layers * commands, profile["body_gb_per_s"] * 1e9
    seconds = max(cycles / (clock_mhz * 1e6), nbytes / rate)
    basis = (
        f"{count} times the longer of {cycles} cycles and {nbytes / 1e6:.2f} MB at "
        f"{profile.quote('body_gb_per_s')}"
    )
    return [
        Term("attention (fabric)", count * seconds, count * cycles, count * nbytes, basis),
        _each("attention: launches", count, profile, "launch_us"),
        _each("attention: queries, keys in", shape.layers, profile, "activations_us_per_step"),
        _each("attention: results out", shape.layers, profile, "results_us_per_step"),
    ]


def _rescoring(shape: ModelShape, profile: Profile) -> Term:
    """What the processor does about a screen: a pass over all bounds, and some rows exactly.

    Bounds are three numbers a row, read as fast as attention reads keys and values.
    """
    figure = "attention_int8_gmac_per_s"
    nbytes = shape.vocabulary * BOUND_BYTES + RESCORED_ROWS * shape.hidden
    return Term(
        "bounds, exact rows",
        nbytes / (profile[figure] * 1e9),
        0,
        nbytes,
        f"{shape.vocabulary} times {BOUND_BYTES} bytes and {RESCORED_ROWS} rows, an assumption, at "
        f"{profile.quote(figure)}",
    )


def _each(name: str, steps: int, profile: Profile, figure: str) -> Term:
    """A term that every step costs alike."""
    seconds = steps * profile[figure] * 1e-6
    return Term(name, seconds, basis=f"{steps} times {profile.quote(figure)}")


def _native(shape: ModelShape, profile: Profile, steps: int) -> list[Term]:
    """What the processor does between matrices, in native code."""
    counts = {
        "norms, rotary, residuals": (shape.hidden, "norm_ns_per_element"),
        "gate": (shape.intermediate, "gate_ns_per_element"),
    }
    terms = [
        Term(
            name,
            shape.layers * elements * profile[figure] * 1e-9,
            basis=f"{shape.layers} times {elements} elements at {profile.quote(figure)}",
        )
        for name, (elements, figure) in counts.items()
    ]
    return [
        *terms,
        _each("activations in", steps, profile, "activations_us_per_step"),
        _each("results out", steps, profile, "results_us_per_step"),
    ]


def _python(steps: int) -> Term:
    basis = f"{steps} times {PYTHON_HOST_US:g} us, Python on a desktop; more on a board"
    return Term("processor (Python)", steps * PYTHON_HOST_US * 1e-6, basis=basis)


def measured_comparison(
    geometry: Geometry, profile: Profile, clock_mhz: float, *, storage: str = "int8"
) -> list[dict[str, Any]]:
    """Tokens per second of every shape, context and head, beside the bounds, a row each."""
    return [
        {"model": name, "context": context, "head": head}
        | {
            column: round(tokens_per_second(terms), 1)
            for column, terms in _columns(
                shape, geometry, profile, clock_mhz, context, head, storage
            ).items()
        }
        for name, shape in SHAPES.items()
        for context in CONTEXTS
        for head in HEADS
    ]


def _columns(
    shape: ModelShape,
    geometry: Geometry,
    profile: Profile,
    clock_mhz: float,
    context: int,
    head: str,
    storage: str,
) -> dict[str, list[Term]]:
    """Terms of a token with each kind of host, and of the bounds."""
    measured = {
        f"tokens/s, {host} host": measured_terms(
            shape,
            geometry,
            profile,
            clock_mhz,
            context=context,
            head=head,
            storage=storage,
            host=host,
        )
        for host in HOSTS
    }
    assumptions = Assumptions(clock_mhz=clock_mhz)
    bounds = {
        f"bound, {attention}": token_terms(
            shape, geometry, assumptions, context=context, head=head, attention=attention
        )
        for attention in ATTENTIONS
    }
    return {**measured, **bounds}


__all__ = [
    "CONTEXTS",
    "HOSTS",
    "LABEL",
    "STORAGE",
    "attention_macs",
    "kv_bytes",
    "measured_comparison",
    "measured_terms",
]
