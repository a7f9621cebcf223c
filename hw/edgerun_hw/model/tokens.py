"""Tokens per second of whole models on the overlay: a bound. Modelled, no board.

A modelled figure is cycles (``cycles.py``, held against the simulator) times an assumed clock,
memory traffic over an assumed share of an assumed bandwidth, and assumptions about the processor
beside it. ``token_terms`` lists every term, so that nobody has to believe the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edgerun_hw.model.cycles import PYTHON_HOST_US, Assumptions, matrix_work
from edgerun_hw.overlay.command import Capabilities
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.geometry import Geometry, capabilities_of

LABEL = "modelled: cycles x assumed clock, no board"


@dataclass(frozen=True)
class ModelShape:
    """The matrices of a decoder with ternary layers.

    Attributes:
        name: of the model.
        source: where the shape is from.
    """

    name: str
    source: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Elements of all key heads, or value heads, of a token and layer."""
        return self.kv_heads * self.head_dim

    def steps(self) -> Mapping[str, tuple[int, int]]:
        """Matrices ``(N, K)`` of a layer by step; those that share an input are one."""
        h, f = self.hidden, self.intermediate
        return {
            "qkv": (h + 2 * self.kv_width, h),
            "o": (h, h),
            "gate/up": (2 * f, h),
            "down": (h, f),
        }

    @property
    def parameters(self) -> int:
        """Of the layers' matrices and the embedding, which the head shares."""
        matrices = sum(n * k for n, k in self.steps().values())
        return matrices * self.layers + self.vocabulary * self.hidden


SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        "bitnet-0.73b": ModelShape(
            "BitNet b1.58 0.73 B, the model of TeLLMe",
            "config.json of 1bitLLM/bitnet_b1_58-large: with tied embeddings 0.729 B parameters, "
            "which arXiv:2504.16266 and arXiv:2510.15926 call 0.73 B",
            layers=24,
            hidden=1536,
            intermediate=4096,
            heads=16,
            kv_heads=16,
            vocabulary=32002,
        ),
        "bitnet-2b-4t": ModelShape(
            "BitNet b1.58 2B-4T",
            "config.json of microsoft/bitnet-b1.58-2B-4T; arXiv:2504.12285",
            layers=30,
            hidden=2560,
            intermediate=6912,
            heads=20,
            kv_heads=5,
            vocabulary=128256,
        ),
    }
)

# Magnitudes of a head's weights; of a screened one, those of the screen (backend/screen.py).
SCREENED = "int8, screened"
LARGEST = {"int8": 128, "int4": 8, SCREENED: 13}
HEADS = tuple(LARGEST)
HEAD_BLOCK = 128
ATTENTIONS = ("processor", "hidden")


@dataclass(frozen=True)
class Term:
    """A part of a token's time.

    Attributes:
        name: what it is.
        seconds: it adds to the token's time.
        cycles: of the fabric, where it is the fabric's.
        nbytes: moved to or from memory.
        basis: how it was computed.
    """

    name: str
    seconds: float
    cycles: int = 0
    nbytes: int = 0
    basis: str = ""


def token_terms(
    shape: ModelShape,
    geometry: Geometry,
    assumptions: Assumptions,
    *,
    context: int = 1024,
    head: str = "int8",
    attention: str = "processor",
) -> list[Term]:
    """Every term of a decoded token's time; they follow one another, so they add up.

    Args:
        shape: of the model.
        geometry: of the overlay.
        assumptions: what is not known.
        context: tokens attended to.
        head: weights of the output head, in ``HEADS``.
        attention: ``"processor"``: it reads the int8 keys and values, at its own speed, while the
            fabric waits. ``"hidden"``: something beside it reads them at the speed of weight
            streams and computes in that time; edgerun has no such unit, so this is a bound.
    """
    can = capabilities_of(geometry)
    terms = [
        fabric_term(step, matrix, 1, matrix[1], can, assumptions, shape.layers)
        for step, matrix in shape.steps().items()
    ]
    terms.append(head_term(shape, head, can, assumptions))
    cached = 2 * shape.layers * shape.kv_width * context
    rate = assumptions.attention_gb_per_s * 1e9
    basis = f"int8 keys and values of {context} tokens at {rate / 1e9:g} GB/s, assumed"
    if attention == "hidden":
        rate = assumptions.stream_bytes_per_s
        basis = f"int8 keys and values of {context} tokens as fast as weights: a bound"
    terms.append(Term(f"attention ({attention})", cached / rate, 0, cached, basis))
    launches = shape.layers * len(shape.steps()) + 1
    commands = f"{launches} times {assumptions.launch_us:g} us, assumed"
    terms.append(Term("launches", launches * assumptions.launch_us * 1e-6, basis=commands))
    host = (
        f"{launches} times {assumptions.host_us:g} us, native code assumed: norms, rounding, "
        f"scaling; Python takes {PYTHON_HOST_US:g} us on a desktop, more on a board"
    )
    terms.append(Term("processor", launches * assumptions.host_us * 1e-6, basis=host))
    return terms


def head_term(shape: ModelShape, head: str, can: Capabilities, assumptions: Assumptions) -> Term:
    """The output head, one of ``HEADS``: a command a block of scales; a screen has one scale."""
    matrix = shape.vocabulary, shape.hidden
    block = shape.hidden if head == SCREENED else HEAD_BLOCK
    return fabric_term(f"head ({head})", matrix, LARGEST[head], block, can, assumptions, 1)


def fabric_term(
    name: str,
    matrix: tuple[int, int],
    largest: int,
    block: int,
    can: Capabilities,
    assumptions: Assumptions,
    layers: int,
) -> Term:
    """A step of all layers; ternary weights have one scale a row, so all of K is one block.

    Args:
        name: of the step.
        matrix: its ``(N, K)``.
        largest: magnitude of its weights.
        block: of K that shares scales.
        can: what the overlay can do.
        assumptions: clock, and how fast weights come.
        layers: that have the step.
    """
    cut = cut_matrix(matrix, largest, block, can)
    scaled = can.glue and cut.blocks == 1  # for the glue behind it
    work = matrix_work(cut, can, 1, scaled=scaled)
    return Term(
        name,
        work.seconds(assumptions) * layers,
        (work.cycles + work.exposed) * layers,
        work.nbytes * layers,
        f"{layers} times the longer of {work.cycles} cycles and {work.nbytes / 1e6:.2f} MB "
        f"({work.limit(assumptions)}), and {work.exposed} cycles of start and drain",
    )


def tokens_per_second(terms: Sequence[Term]) -> float:
    """What the terms amount to."""
    return 1 / sum(term.seconds for term in terms)


def term_table(terms: Sequence[Term], label: str = LABEL, tokens: int = 1) -> list[dict[str, Any]]:
    """Terms of so many tokens as rows to print, with the sum and tokens per second at the end."""
    total = sum(term.seconds for term in terms)
    rows = [_row(term, total) for term in terms]
    cycles, nbytes = sum(term.cycles for term in terms), sum(term.nbytes for term in terms)
    rate = f"{tokens / total:.1f} tokens/s; {label}"
    return [*rows, _row(Term("all", total, cycles, nbytes, rate), total)]


def _row(term: Term, total: float) -> dict[str, Any]:
    return {
        "term": term.name,
        "ms": round(term.seconds * 1e3, 3),
        "share": f"{term.seconds / total:.0%}",
        "kilocycles": round(term.cycles / 1e3, 1),
        "MB": round(term.nbytes / 1e6, 2),
        "basis": term.basis,
    }


def comparison(
    geometry: Geometry, assumptions: Assumptions, *, context: int = 1024
) -> list[dict[str, Any]]:
    """Tokens per second of every shape, head and way of attention, a row each.

    The last column has the host's share as Python takes it on a desktop, in place of what native
    code is assumed to take.
    """
    with_python = replace(assumptions, host_us=PYTHON_HOST_US)
    rows = []
    for name, shape in SHAPES.items():
        for head, attention in itertools.product(HEADS, ATTENTIONS):
            rates = [
                tokens_per_second(
                    token_terms(
                        shape, geometry, chosen, context=context, head=head, attention=attention
                    )
                )
                for chosen in (assumptions, with_python)
            ]
            rows.append(
                {
                    "model": name,
                    "head": head,
                    "attention": attention,
                    "tokens/s": round(rates[0], 1),
                    "tokens/s, Python host": round(rates[1], 1),
                }
            )
    return rows


def prefill_rates(
    geometries: Mapping[str, Geometry], assumptions: Assumptions, *, tokens: int = 128
) -> list[dict[str, Any]]:
    """Prompt tokens per second of the fabric alone, a row for each shape and geometry.

    A bound: attention and the processor's share are left out, because they run beside the fabric or
    not at all like decoding's. The head multiplies one row.
    """
    rows = []
    for name, shape in SHAPES.items():
        for label, geometry in geometries.items():
            can = capabilities_of(geometry)
            steps = [
                matrix_work(cut_matrix(matrix, 1, matrix[1], can), can, tokens)
                for matrix in shape.steps().values()
            ]
            seconds = shape.layers * sum(work.seconds(assumptions) for work in steps)
            cycles = sum(work.cycles + work.exposed for work in steps)
            macs = tokens * sum(n * k for n, k in shape.steps().values())
            rows.append(
                {
                    "model": name,
                    "geometry": label,
                    "prompt": tokens,
                    "tokens/s, fabric alone": round(tokens / seconds, 1),
                    "multiply-adds a cycle": round(macs / cycles, 1),
                    "limited by": steps[0].limit(assumptions),
                }
            )
    return rows


__all__ = [
    "ATTENTIONS",
    "HEADS",
    "LABEL",
    "PYTHON_HOST_US",
    "SCREENED",
    "SHAPES",
    "Assumptions",
    "ModelShape",
    "Term",
    "comparison",
    "fabric_term",
    "head_term",
    "prefill_rates",
    "term_table",
    "token_terms",
    "tokens_per_second",
]
