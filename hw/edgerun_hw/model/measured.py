"""Tokens per second with rates that were measured on a board, in place of ``tokens.py``'s bound.

The fabric's cycles are the same; how fast memory gives weights, how fast the processor attends and
what it does between matrices come from a profile (``profile.py``). Still modelled: the board ran
another design.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgerun_hw.model.cycles import PYTHON_HOST_US, Assumptions
from edgerun_hw.model.layers import layer_terms
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
from edgerun_hw.model.unit import each_step, unit_terms
from edgerun_hw.overlay.geometry import Geometry, capabilities_of

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
    body = streaming(profile["body_gb_per_s"], clock_mhz)
    late = f"{profile['late_ports_least']:.0%} to {profile['late_ports_most']:.0%}"
    terms = [
        _based(
            fabric_term(step, matrix, 1, matrix[1], can, body, shape.layers),
            f"weights at {profile.quote('body_gb_per_s')}; HP1 and HP2 {late} late, in it",
        )
        for step, matrix in shape.steps().items()
    ]
    head_rate = streaming(profile["head_gb_per_s"], clock_mhz)
    term = head_term(shape, head, can, head_rate)
    terms.append(_based(term, f"weights at {profile.quote('head_gb_per_s')}"))
    if head == SCREENED:
        terms.append(_rescoring(shape, profile))
    if geometry.attention and storage == "int8":
        terms += unit_terms(shape, geometry, profile, clock_mhz, [context])
    else:
        terms.append(_attention(shape, profile, context, storage))
    if geometry.glue and host == "native":
        return terms + layer_terms(shape, geometry, profile, clock_mhz)
    steps = shape.layers * len(shape.steps()) + 1
    terms.append(each_step("launches", steps, profile, "launch_us"))
    return terms + (native_terms(shape, profile, steps) if host == "native" else [_python(steps)])


def streaming(gb_per_s: float, clock_mhz: float) -> Assumptions:
    """Assumptions of a clock, and of weights that come at a rate."""
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


def native_terms(shape: ModelShape, profile: Profile, steps: int, rows: int = 1) -> list[Term]:
    """What the processor does between matrices, in native code.

    Args:
        shape: of the model.
        profile: of the board.
        steps: that have activations and results.
        rows: tokens that each of them has.
    """
    counts = {
        "norms, rotary, residuals": (shape.hidden, "norm_ns_per_element"),
        "gate": (shape.intermediate, "gate_ns_per_element"),
    }
    terms = [
        Term(
            name,
            rows * shape.layers * elements * profile[figure] * 1e-9,
            basis=f"{rows * shape.layers} times {elements} elements at {profile.quote(figure)}",
        )
        for name, (elements, figure) in counts.items()
    ]
    return [
        *terms,
        each_step("activations in", rows * steps, profile, "activations_us_per_step"),
        each_step("results out", rows * steps, profile, "results_us_per_step"),
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
