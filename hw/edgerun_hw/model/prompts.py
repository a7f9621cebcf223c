"""How long a prompt takes with rates that were measured on a board: every term, modelled.

A prompt's rows go through the overlay as many at a time as it has columns; what the processor does
between matrices it does for every row. TeLLMe publishes 143 tokens/s for its 0.73 B model and 128
tokens (arXiv:2510.15926).
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_hw.model.cycles import matrix_work
from edgerun_hw.model.measured import attention_macs, kv_bytes, native_terms, streaming
from edgerun_hw.model.profile import Profile
from edgerun_hw.model.tokens import HEADS, ModelShape, Term, head_term
from edgerun_hw.model.unit import each_step, unit_terms
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.geometry import Geometry, capabilities_of

TOKENS = 128
BESIDE = "beside 143 tokens/s that TeLLMe v2 publishes for the 0.73 B model (arXiv:2510.15926)"


def prompt_terms(
    shape: ModelShape, geometry: Geometry, profile: Profile, clock_mhz: float, tokens: int = TOKENS
) -> list[Term]:
    """Every term of a prompt's time with the native host; they follow one another, so they add up.

    Args:
        shape: of the model.
        geometry: of the overlay; with the attention unit it attends, else the processor does.
        profile: of the board.
        clock_mhz: of the overlay.
        tokens: of the prompt, before which there is nothing.
    """
    can, body = capabilities_of(geometry), streaming(profile["body_gb_per_s"], clock_mhz)
    terms = []
    for step, matrix in shape.steps().items():
        work = matrix_work(cut_matrix(matrix, 1, matrix[1], can), can, tokens)
        basis = (
            f"{shape.layers} times {work.cycles + work.exposed} cycles or "
            f"{work.nbytes / 1e6:.1f} MB at {profile.quote('body_gb_per_s')} "
            f"({work.limit(body)}), {can.columns} rows at a time"
        )
        cycles, nbytes = shape.layers * (work.cycles + work.exposed), shape.layers * work.nbytes
        terms.append(Term(step, shape.layers * work.seconds(body), cycles, nbytes, basis))
    head = head_term(shape, HEADS[0], can, streaming(profile["head_gb_per_s"], clock_mhz))
    basis = f"{head.basis}; of the last row, weights at {profile.quote('head_gb_per_s')}"
    terms.append(replace(head, basis=basis))
    if geometry.attention:
        contexts = range(1, tokens + 1)
        terms += unit_terms(shape, geometry, profile, clock_mhz, contexts)
    else:
        terms.append(_processor(shape, profile, tokens))
    steps = shape.layers * len(shape.steps()) + 1
    groups = -(-tokens // can.columns)
    terms.append(each_step("launches", steps * groups, profile, "launch_us"))
    return terms + native_terms(shape, profile, steps, tokens)


def _processor(shape: ModelShape, profile: Profile, tokens: int) -> Term:
    """Attention on the processor: each row to all before it."""
    figure, pairs = "attention_int8_gmac_per_s", tokens * (tokens + 1) // 2
    macs = attention_macs(shape, pairs)
    return Term(
        "attention (int8 keys and values)",
        macs / (profile[figure] * 1e9),
        0,
        kv_bytes(shape, tokens, "int8"),
        f"{macs / 1e6:.1f} M multiply-adds on the processor at {profile.quote(figure)}",
    )
