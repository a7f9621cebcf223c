"""How much memory experts get: what was asked for, or what is free where not all have room."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerun.backends.base import ExpertMemory
from edgerun.errors import InputError
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.ir import Graph, Node
from edgerun.graph.slabs import slab
from edgerun.machine.disk import NOMINAL_DISK, DiskProfile
from edgerun.offload.policies.registry import policies
from edgerun.values import as_int, shown

AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) *(?:(%)|([kmgt]?)(i?)b?)", re.IGNORECASE | re.ASCII)
UNITS = ("", "k", "m", "g", "t")
POLICY = "scan_lru"
MOST_GAPS = 1.25  # of what is read, against what is needed
MARGIN_BYTES = 512 << 20  # of what is free, for values between layers, readers and other programs


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A layer of experts, all of one size.

    Attributes:
        name: of its node.
        experts: how many there are.
        top_k: how many of them a token goes to.
        stored_bytes: of one in its file.
        held_bytes: of one in memory.
    """

    name: str
    experts: int
    top_k: int
    stored_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryAmount:
    """An amount of memory: bytes, or a share of what all experts of a model take."""

    nbytes: int | None = None
    share: float | None = None

    @classmethod
    def read(cls, value: object) -> MemoryAmount:
        """Reads what a caller asks for.

        >>> MemoryAmount.read("1.5G"), MemoryAmount.read("25%")
        (MemoryAmount(nbytes=1500000000, share=None), MemoryAmount(nbytes=None, share=0.25))

        Args:
            value: a number of bytes, or a text: ``"4G"`` (10^9 bytes each), ``"512MiB"`` (2^20),
                ``"25%"`` of all experts.

        Raises:
            InputError: it is something else, nothing, or more than all.
        """
        match = AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
        if match and match[2] and 0 < float(match[1]) <= 100:
            return cls(share=float(match[1]) / 100)
        number = _bytes_of(value, match)
        if number is None or number < 1:
            raise InputError(
                f"expert_memory is {shown(value)}; expected an amount such as 4G, 512M, or 25% of "
                "what all experts take"
            )
        return cls(nbytes=number)

    def of(self, total_bytes: int) -> int:
        """The amount in bytes, where all experts take so many."""
        if self.nbytes is not None:
            return self.nbytes
        return math.ceil(total_bytes * (self.share or 0.0))


def _bytes_of(value: object, match: re.Match[str] | None) -> int | None:
    if match is None or match[2]:
        return as_int(value)
    base = 1024 if match[4] else 1000
    return int(float(match[1]) * base ** UNITS.index(match[3].lower()))


def gpu_memory_bytes(value: object) -> int:
    """Reads how much of a GPU's memory experts may take.

    Args:
        value: a number of bytes, or a text as ``MemoryAmount.read`` takes it, but no share.

    Raises:
        InputError: it is something else, or nothing.
    """
    match = AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    number = _bytes_of(value, match)
    if number is None or number < 1:
        raise InputError(f"gpu_memory is {shown(value)}; expected an amount such as 6G or 512M")
    return number


def expert_layers(graph: Graph, held: Callable[[Graph, Node], int]) -> tuple[ExpertLayer, ...]:
    """The layers of a graph in which tokens go to different experts, in its order.

    Args:
        graph: lowered.
        held: says how many bytes an expert of a layer takes in memory.
    """
    layers = []
    for node in graph.nodes:
        constants = (graph.constants.get(name) for name in node.inputs)
        stacks = [each for each in constants if isinstance(each, ExpertStack)]
        if stacks and stacks[0].has_choice:
            first = [stack.matrices[0] for stack in stacks]
            layers.append(
                ExpertLayer(
                    name=node.name,
                    experts=len(stacks[0].matrices),
                    top_k=int(node.attrs["top_k"]),
                    stored_bytes=_stored_bytes(first),
                    held_bytes=held(graph, node),
                )
            )
    return tuple(layers)


def _stored_bytes(matrices: Sequence[Matrix]) -> int:
    """What is read of a file to get some matrices: all between them, if they lie side by side."""
    nbytes, piece = sum(matrix.nbytes for matrix in matrices), slab(matrices)
    return nbytes if piece is None or piece.length > MOST_GAPS * nbytes else piece.length


@dataclass(frozen=True, slots=True)
class ExpertBudget:
    """Memory that the experts of a model share.

    Attributes:
        layers: of experts.
        nbytes: that they may take.
        slot_bytes: what one takes in memory, whichever it is.
        disk: that others are read from.
    """

    layers: tuple[ExpertLayer, ...]
    nbytes: int
    slot_bytes: int
    disk: DiskProfile = NOMINAL_DISK

    @property
    def slots(self) -> int:
        """Experts that there is room for."""
        return min(self.nbytes // self.slot_bytes, self.experts)

    @property
    def experts(self) -> int:
        """All of them."""
        return sum(layer.experts for layer in self.layers)

    @property
    def resident_share(self) -> float:
        """The share of all experts that there is room for."""
        return self.slots / self.experts

    @property
    def stored_bytes(self) -> int:
        """What all of them take in their file."""
        return sum(layer.experts * layer.stored_bytes for layer in self.layers)

    def memory(self) -> ExpertMemory:
        """The same for back-ends: they make room by ``POLICY`` and read as the disk likes best."""
        return ExpertMemory(
            self.nbytes,
            policies()[POLICY],
            direct=self.disk.is_direct,
            at_once=self.disk.threads,
            slot_bytes=self.slot_bytes,
            top_k=max(layer.top_k for layer in self.layers),
        )


def budget_for(
    layers: tuple[ExpertLayer, ...],
    asked: MemoryAmount | None,
    free_bytes: int,
    other_bytes: int,
) -> ExpertBudget | None:
    """The memory that experts may take; None if all of them have room.

    Args:
        layers: of experts; one or more.
        asked: what the caller asks for, or None for as much as there is.
        free_bytes: of memory.
        other_bytes: that the model takes besides: other weights, keys and values.

    Raises:
        InputError: that is too little to run the model, or more than is free.
    """
    slot_bytes = max(layer.held_bytes for layer in layers)
    total = sum(layer.experts * layer.held_bytes for layer in layers)
    needed = max(layer.top_k for layer in layers)  # for one token
    least = needed * slot_bytes
    left = max(0, free_bytes - other_bytes)
    room = max(0, left - MARGIN_BYTES)
    nbytes = room if asked is None else asked.of(total)
    if asked is None and room < least:
        if total <= left:  # small ones fit where the margin does not
            return None
        raise InputError(
            f"{_size(room)} of memory are left for experts, and those of one token take "
            f"{_size(least)} in a layer: end other programs, or load the model with a smaller "
            "context"
        )
    if nbytes < least:
        raise InputError(
            f"{nbytes} bytes are too few for experts: a token needs {needed} of a layer in memory "
            f"at a time; allow {least} or more"
        )
    if min(nbytes, total) > left:
        raise InputError(
            f"expert_memory is {_size(min(nbytes, total))}, and {_size(left)} of memory are left "
            f"for experts: choose {left // 10**6}M or less"
        )
    return None if nbytes >= total else ExpertBudget(layers, nbytes, slot_bytes)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
