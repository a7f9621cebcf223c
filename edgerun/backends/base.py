"""The contract of a back-end: what it can run, what it costs, and how it becomes a program.

A back-end lives in one file or folder beside this one (or in another package that announces it
under the entry point ``edgerun.backends``) and is found by name. The smallest complete example
is ``reference.py``. Whoever writes another inherits from ``Backend`` and overrides what differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.figures import ExpertReads, Handover, Report
from edgerun.errors import InputError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.state import Batch, SequenceStore, State

if TYPE_CHECKING:
    from edgerun.machine.devices import DeviceProfile

Values: TypeAlias = Mapping[str, NDArray[np.float32]]
NO_VALUES: Values = MappingProxyType({})


class Phase(Enum):
    """Buckets of row counts: decoding is bound by memory, a prompt by arithmetic.

    ``FEW`` rows are one each of several sequences, a draft to verify, or the end of a prompt.
    """

    DECODE = "decode"
    FEW = "few"
    PREFILL = "prefill"


FEW_ROWS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The batches that a program is made for, or whose cost is asked.

    Attributes:
        phase: the bucket.
        rows: the largest number of rows of a batch; where costs are estimated, the number.
        cached: tokens in the cache that each row attends to; only estimates know it.
    """

    phase: Phase
    rows: int
    cached: int = 0

    @classmethod
    def of(cls, rows: int) -> Shape:
        """Batches of up to ``rows`` rows, in the bucket of the largest."""
        few = Phase.FEW if rows > 1 else Phase.DECODE
        return cls(Phase.PREFILL if rows > FEW_ROWS else few, rows)


def buckets(chunk_rows: int) -> tuple[Shape, ...]:
    """The shapes that together take every batch of up to ``chunk_rows`` rows, smallest first."""
    return tuple(Shape.of(rows) for rows in sorted({1, min(FEW_ROWS, chunk_rows), chunk_rows}))


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something can be done, and if not, why; shown by doctor and plan --explain."""

    ok: bool
    reason: str = ""
    remedy: str = ""  # what has it done all the same

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class ExpertMemory:
    """Memory for experts that do not all fit into it: the others are read as they are needed.

    Attributes:
        nbytes: that they may take.
        make_policy: makes what says which of them leaves, ``edgerun.offload.policies``.
        patience_s: how long a call may wait for a read.
        direct: whether they are read past the system's cache, where that is possible.
        at_once: reads at a time, as the disk likes best.
        slot_bytes: of a slot, which takes any expert of the model, and
        top_k: most experts of a token in a layer; 0 for what the first program's experts need, if
            they do not all fit: it may have a part of them only.
    """

    nbytes: int
    make_policy: Callable[[], Any]
    patience_s: float = 10.0
    direct: bool = True
    at_once: int = 1
    slot_bytes: int = 0
    top_k: int = 0


class Progress(Protocol):
    """Receives one line of text about what is being prepared."""

    def __call__(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What every back-end may need to know beyond the segment and the shape.

    Attributes:
        states: what the model's layers remember, stored as the caller chose.
        progress: called with a short text before slow work such as compilation.
        fallback: compiles a segment for the companion that stands in for a back-end whose device
            fails; None where there is none.
        required: a device that fails is an error; nothing stands in for it.
        is_asked: a user named the back-end; else it must keep nobody waiting for a compiler.
        digest: identifies the content of the bundle; empty if nothing made of it is to be kept.
        verified: waits until the bundle was found to have that digest; raises ``BundleError``.
    """

    states: tuple[State, ...]
    progress: Progress = field(default=lambda text: None)
    fallback: Callable[[Graph, Shape], Executable] | None = None
    required: bool = False
    is_asked: bool = True
    digest: str = ""
    verified: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Launches:
    """What an executable's native programs cost besides their kernels, counted as it runs.

    Attributes:
        instructions: kernel calls of one run.
        waits: how often all threads waited for each other in the first run.
        runs: so far.
        native_s: seconds inside native programs so far; the rest of a call is Python.
        paths: how the kernels get at their products, as the machine profile names it.
    """

    instructions: int = 0
    waits: int = 0
    runs: int = 0
    native_s: float = 0.0
    paths: tuple[str, ...] = ()


class Executable(ABC):
    """A compiled segment; calling it runs one batch and updates the cache.

    Attributes:
        launches: what starting its kernels costs; None if that is not counted.
        is_due: whether it is compiled, or is worth compiling if it is wanted now.
        is_layered: it takes more rows, layer by layer, but returns logits of no more.
    """

    launches: Launches | None = None
    is_due: bool = True
    is_layered: bool = False

    @abstractmethod
    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the rows of ``batch``; writes their keys and values into ``cache``.

        Pages must have been reserved up to the last position.

        Args:
            batch: the token rows.
            cache: read and written by attention.
            values: what the segment reads from earlier segments, float32 ``[rows, width]``.

        Returns:
            the segment's outputs by name, valid until the next call; a language model's is
            ``"logits"``, float32 ``[len(batch.logit_rows), vocab]``.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases threads, memory and devices; calling it twice is allowed."""


class Backend(ABC):
    """A way to run graph nodes on some device.

    Attributes:
        name: how users call it.
        whole_graph: it runs the original model file or nothing, and is not mixed with others.
        companions: of a back-end that runs some nodes only, the names of those that run the rest,
            and everything if its device fails. Asked for by name, it takes all that it supports,
            whatever that costs; else only if a device is named (``EDGERUN_<NAME>_DEVICE``).
        mirrors: it keeps what it read of keys and values, so a call reads what is new.
        is_simulated: its times are another machine's: asked for by name it takes only what it does
            faster there, and nothing is measured of it.
        chooses_device: it has a device of its own choice, so that its name alone names one.
        holds_experts: in a device's memory, besides those of the processor.
        takes_gpu_memory: ``gpu_memory`` says how much of it.
        has_rows_alike: up to ``FEW_ROWS`` rows of a call have the bits that each alone has.
    """

    name: str
    whole_graph: bool = False
    companions: tuple[str, ...] = ()
    mirrors: bool = False
    is_simulated: bool = False
    chooses_device: bool = False
    takes_gpu_memory: bool = False
    holds_experts: bool = False
    has_rows_alike: bool = False

    def companion_choices(self) -> Mapping[str, Any]:
        """What its companions learn besides, see ``configure``."""
        return {}

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes what the caller chose, before anything else; other back-ends' keys are ignored.

        Args:
            given: options of ``edgerun.load`` that concern back-ends: ``threads`` to work with,
                ``kv_cache``, how keys and values are stored, ``pack``, how ternary weights lie in
                memory, ``prefill`` and ``attention``, whether prompts may be computed faster and
                not quite as the model has it, ``experts``, the ``ExpertMemory``, ``gpu_memory``,
                bytes of a GPU for experts, ``expert_history``, what these were asked before,
                ``share_always``, and another ``machine``, a profile to estimate costs with.
        """
        del given

    def use_companions(self, companions: Sequence[Backend]) -> None:  # noqa: B027
        """Learns who runs the rest, before anything is compiled."""

    def use_device(self, name: str) -> None:
        """Chooses a device; called before it is probed.

        Raises:
            InputError: there is none of that name; the message lists those there are.
        """
        raise InputError(f"back-end '{self.name}' has no devices to choose from, so not {name!r}")

    def devices(self) -> Mapping[str, Support]:
        """Whether those of its devices that everybody may have are here; opens nothing."""
        return {}

    @abstractmethod
    def probe(self) -> Support:
        """Whether this machine can run the back-end at all; cheap, imports lazily."""

    @abstractmethod
    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Whether the back-end can run this node in this shape."""

    @abstractmethod
    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """Estimated seconds for the node with so many rows and so many tokens in the cache."""

    def call_seconds(self) -> float:
        """Estimated seconds that a call costs besides its nodes, unless a device's profile says."""
        return 0.0

    @property
    def is_processor(self) -> bool:
        """Whether its device is the processor, by other programs than ours; see ``Plan.trial``."""
        return False

    @property
    def is_measured(self) -> bool:
        """Whether ``cost`` stands on what was measured of this machine, or of its device."""
        return self.device_profile() is not None

    def device_profile(self) -> DeviceProfile | None:
        """What was measured of its device, so that plans may choose it unasked; else None."""
        return None

    def chunks(self) -> tuple[int, ...]:
        """Rows of its calls, ascending, where these are fixed; any other number is padded."""
        return ()

    def measures(self) -> Mapping[str, str]:
        """What ``edgerun doctor --calibrate`` measures beside the processor: devices, and versions.

        A version is of what drives a device: with another, what was measured counts no more.
        """
        return {}

    def cost_basis(self) -> str:
        """What ``cost`` stands on, in a line: measurements or assumptions; empty: not said."""
        return ""

    def weight_bytes(self, graph: Graph, node: Node, name: str) -> int:
        """Bytes that a constant of a node takes as the back-end keeps it in memory."""
        return graph.constants[name].nbytes

    def prompt_bytes(self, graph: Graph) -> Mapping[str, int]:
        """Bytes that constants take once more for prompts, by name, as ``prefill`` asks for."""
        return {}

    def prompt_attention(self, graph: Graph) -> Mapping[str, str]:
        """Nodes of attention that are to be faster in prompts, as ``attention`` asks for.

        By name; why one is exact all the same, or nothing if it is not.
        """
        return {}

    @abstractmethod
    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Turns a segment, all of whose nodes are supported, into a program."""

    def joins(self, shape: Shape) -> bool:
        """Whether its segments and its companions' may become a program, by ``compile_joined``."""
        del shape
        return False

    def compile_joined(
        self, graph: Graph, own: Sequence[Graph], shape: Shape, options: CompileOptions
    ) -> Executable:
        """Turns a run of segments into one program, where it ``joins``.

        Args:
            graph: all of them; those that are not ``own`` are companions'.
            own: its segments.
            shape: of batches.
            options: see ``compile``.

        Raises:
            UnsupportedError: it never ``joins``.
        """
        raise UnsupportedError(f"the back-end '{self.name}' joins no other's program")

    def preload(self) -> None:  # noqa: B027 - few have memory to fill
        """Brings to its device what calls are likely to need; once everything is compiled."""

    def handover(self) -> Handover | None:
        """What moving keys and values took so far; None where none are moved."""
        return None

    def expert_reads(self) -> ExpertReads | None:
        """What became of experts so far; None where all of them are in memory."""
        return None

    def outlook(self, segments: Sequence[tuple[Graph, Shape]]) -> Report | None:
        """What it expects of its parts of a plan, where that is more than a sum of costs."""
        return None

    def report(self) -> Report | None:
        """What its device counted; None where nothing is counted, or nothing ran yet."""
        return None

    def close(self) -> None:  # noqa: B027 - many have nothing to release
        """Releases what its executables share; they must not be called after it."""
