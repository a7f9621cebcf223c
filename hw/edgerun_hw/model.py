"""How long matrices take on the overlay, and tokens per second that follow. Modelled, no board.

``command_cycles`` is held against the simulator (``tests/hw/test_model.py``). What a model says of
a whole token is *modelled*: cycles times an assumed clock, memory traffic over an assumed share of
an assumed bandwidth, and assumptions about the processor beside it. ``token_terms`` lists every
term, so that nobody has to believe the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from edgerun.formats.lookup import BEAT_BYTES, row_beats
from edgerun_hw.command import RESULT_BYTES, Capabilities
from edgerun_hw.geometry import Geometry
from edgerun_hw.matrix import FILL_CYCLES, RESULTS_PER_CYCLE, Cut, cut_matrix

LABEL = "modelled: cycles x assumed clock, no board"
# Of the RTL, checked against the simulator: from submitting the first of some commands to its first
# lookup, and from the last result to completion, together.
START_CYCLES = 70


@dataclass(frozen=True)
class Assumptions:
    """What is not known without a board.

    Attributes:
        clock_mhz: of the overlay.
        memory_gb_per_s: of the data bus: a KV260 has 64 bits of DDR4-2400.
        efficiency: share of it that weight streams get: 0.93 in the DDR model of ``simulate``
            (refresh, bank conflicts, four ports), with 64-beat bursts.
        launch_us: from deciding to run a layer's matrices to their first cycle, and from the last
            result to the processor's seeing it. Register writes over AXI4-Lite and an interrupt.
        attention_gb_per_s: at which the processor reads keys and values.
        host_us: rounding, packing, scaling and norms on the processor, for each step that follows
            another (four a layer).
    """

    clock_mhz: float = 300.0
    memory_gb_per_s: float = 19.2
    efficiency: float = 0.93
    launch_us: float = 5.0
    attention_gb_per_s: float = 6.0
    host_us: float = 5.0

    def __str__(self) -> str:
        return (
            f"{self.clock_mhz:g} MHz assumed, {self.efficiency:.0%} of "
            f"{self.memory_gb_per_s:g} GB/s assumed"
        )

    @property
    def stream_bytes_per_s(self) -> float:
        """Of weights."""
        return self.memory_gb_per_s * 1e9 * self.efficiency


@dataclass(frozen=True)
class Work:
    """What the commands of a matrix need, one after the other without gaps.

    Attributes:
        cycles: from the first lookup to the last, memory not limiting.
        exposed: cycles before and after: the start, and the drain of the last results.
        weight_bytes: read.
        other_bytes: activations read and results written.
        commands: submitted.
    """

    cycles: int = 0
    exposed: int = 0
    weight_bytes: int = 0
    other_bytes: int = 0
    commands: int = 0

    @property
    def nbytes(self) -> int:
        """Of all memory traffic."""
        return self.weight_bytes + self.other_bytes

    def seconds(self, assumptions: Assumptions) -> float:
        """The longer of looking up and streaming, and what neither can hide."""
        hertz = assumptions.clock_mhz * 1e6
        streaming = self.nbytes / assumptions.stream_bytes_per_s
        return max(self.cycles / hertz, streaming) + self.exposed / hertz

    def limit(self, assumptions: Assumptions) -> str:
        """What decides: ``"cycles"`` or ``"memory"``."""
        streaming = self.nbytes / assumptions.stream_bytes_per_s
        return "memory" if streaming > self.cycles / (assumptions.clock_mhz * 1e6) else "cycles"


def command_cycles(tiles: int, beats: int) -> int:
    """Cycles of a command's lookups, memory not limiting.

    A tile takes as many as it has row beats, or as its successor's tables take to fill.
    """
    return tiles * max(beats, FILL_CYCLES)


def sequence_cycles(
    commands: Iterable[tuple[int, int, int]], rows_per_beat: int
) -> tuple[int, int]:
    """When commands that follow one another have looked up and drained, in cycles.

    A command's results leave, four a cycle, while the next one looks up; there are two halves of
    accumulators, so the one after that waits for them.

    Args:
        commands: tiles, row beats and columns of each.
        rows_per_beat: of the overlay.

    Returns:
        The cycle of the last lookup, and that of the last result.
    """
    looked_up = drained = drained_before = 0
    for tiles, beats, columns in commands:
        looked_up = max(looked_up, drained_before) + command_cycles(tiles, beats)
        drain = -(-beats * columns * rows_per_beat // RESULTS_PER_CYCLE)
        drained_before, drained = drained, max(looked_up, drained) + drain
    return looked_up, drained


def matrix_work(cut: Cut, can: Capabilities, rows: int) -> Work:
    """What a matrix times ``rows`` activation rows needs."""
    full, left = divmod(rows, can.columns)
    groups = [can.columns] * min(full, 2) + [left] * bool(left)
    # All full groups after the first take the same time.
    first = sequence_cycles(_commands(cut, can, groups[:1]), can.rows_per_beat)[0]
    ends = sequence_cycles(_commands(cut, can, groups), can.rows_per_beat)
    second = sequence_cycles(_commands(cut, can, groups[:2]), can.rows_per_beat)[0]
    shapes = list(_commands(cut, can, [1]))
    weights = sum(tiles * beats for tiles, beats, _ in shapes) * BEAT_BYTES * can.ports
    inputs = sum(tiles for tiles, _, _ in shapes) * BEAT_BYTES
    outputs = sum(beats for _, beats, _ in shapes) * can.rows_per_beat * RESULT_BYTES
    times = full + bool(left)
    return Work(
        cycles=ends[0] + max(0, full - 2) * (second - first),
        exposed=ends[1] - ends[0] + START_CYCLES if rows else 0,
        weight_bytes=weights * times,
        other_bytes=(inputs + outputs) * rows,
        commands=len(shapes) * times,
    )


def _commands(cut: Cut, can: Capabilities, groups: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Tiles, row beats and columns of each command, for groups of so many columns."""
    for columns in groups:
        for block in range(cut.blocks):
            first, last = cut.columns(block)
            for start, stop in cut.pieces():
                beats = row_beats((stop - start) * cut.digits, can.ports)
                yield cut.mode.tiles(last - first), beats, columns


def matrix_seconds(cut: Cut, can: Capabilities, rows: int, assumptions: Assumptions) -> float:
    """Estimated time of one matrix, launch included."""
    return matrix_work(cut, can, rows).seconds(assumptions) + assumptions.launch_us * 1e-6


def capabilities_of(geometry: Geometry) -> Capabilities:
    """What an overlay of this geometry says about itself."""
    return Capabilities(
        ports=geometry.ports,
        columns=geometry.columns,
        queue_depth=geometry.queue_depth,
        max_row_beats=geometry.nb_max,
        row_scale=geometry.row_scale,
        ternary=True,
        multiples=True,
        addr_bits=geometry.addr_bits,
    )


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

LARGEST = {"int8": 128, "int4": 8}  # magnitudes of a head's weights
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
        _fabric_term(step, matrix, 1, matrix[1], can, assumptions, shape.layers)
        for step, matrix in shape.steps().items()
    ]
    output, largest = (shape.vocabulary, shape.hidden), LARGEST[head]
    terms.append(_fabric_term(f"head ({head})", output, largest, HEAD_BLOCK, can, assumptions, 1))
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
    host = f"{launches} times {assumptions.host_us:g} us, assumed: norms, rounding, scaling"
    terms.append(Term("processor", launches * assumptions.host_us * 1e-6, basis=host))
    return terms


def _fabric_term(
    name: str,
    matrix: tuple[int, int],
    largest: int,
    block: int,
    can: Capabilities,
    assumptions: Assumptions,
    layers: int,
) -> Term:
    """A step of all layers; ternary weights have one scale a row, so all of K is one block."""
    cut = cut_matrix(matrix, largest, block, can)
    work = matrix_work(cut, can, 1)
    return Term(
        name,
        work.seconds(assumptions) * layers,
        (work.cycles + work.exposed) * layers,
        work.nbytes * layers,
        f"{layers} times {work.cycles} cycles or {work.nbytes / 1e6:.2f} MB, of which "
        f"{work.limit(assumptions)} decide, and {work.exposed} cycles of start and drain",
    )


def tokens_per_second(terms: Sequence[Term]) -> float:
    """What the terms amount to."""
    return 1 / sum(term.seconds for term in terms)


def token_table(
    shape: ModelShape,
    geometry: Geometry,
    assumptions: Assumptions,
    *,
    context: int = 1024,
    head: str = "int8",
    attention: str = "processor",
) -> list[dict[str, Any]]:
    """``token_terms`` as rows to print, with the sum and tokens per second at the end."""
    terms = token_terms(
        shape, geometry, assumptions, context=context, head=head, attention=attention
    )
    total = sum(term.seconds for term in terms)
    rows = [_row(term, total) for term in terms]
    cycles, nbytes = sum(term.cycles for term in terms), sum(term.nbytes for term in terms)
    rate = f"{1 / total:.1f} tokens/s; {LABEL}"
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
    """Tokens per second of every shape, head and way of attention, a row each."""
    return [
        {
            "model": name,
            "head": head,
            "attention": attention,
            "tokens/s": round(
                tokens_per_second(
                    token_terms(
                        shape,
                        geometry,
                        assumptions,
                        context=context,
                        head=head,
                        attention=attention,
                    )
                ),
                1,
            ),
        }
        for name, shape in SHAPES.items()
        for head in HEADS
        for attention in ATTENTIONS
    ]


__all__ = [
    "ATTENTIONS",
    "HEADS",
    "LABEL",
    "SHAPES",
    "Assumptions",
    "ModelShape",
    "Term",
    "Work",
    "capabilities_of",
    "command_cycles",
    "comparison",
    "matrix_seconds",
    "matrix_work",
    "sequence_cycles",
    "token_table",
    "token_terms",
    "tokens_per_second",
]
