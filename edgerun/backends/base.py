"""The contract of a back-end: what it can run, what it costs, and how it becomes a program.

A back-end lives in one file or folder beside this one (or in another package that announces it
under the entry point ``edgerun.backends``) and is found by name. The smallest complete example
is ``reference.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgerun.graph.ir import Graph, Node
from edgerun.state import Batch, CacheSpec, KVCache

Values: TypeAlias = Mapping[str, NDArray[np.float32]]
NO_VALUES: Values = MappingProxyType({})


class Phase(Enum):
    """Prefill reads many tokens a call and is bound by compute; decode by memory."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something can be done, and if not, why; shown by doctor and plan --explain."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What a back-end may need to know beyond the segment itself.

    Attributes:
        threads: worker threads to use, at least 1.
        max_rows: the largest number of rows a batch will have in this phase.
        cache: what the model caches, with the storage type chosen by the caller.
        progress: called with a short text before slow work such as compilation.
        trits: whether to keep ternary weights in memory at 1.6 bits where that is possible.
        fallback: compiles a segment for the back-end that stands in for an ``Accelerator`` whose
            device fails; None where there is no such back-end.
    """

    threads: int
    max_rows: int
    cache: CacheSpec
    progress: Progress = field(default=lambda text: None)
    trits: bool = False
    fallback: Callable[[Graph, Phase], Executable] | None = None


class Progress(Protocol):
    """Receives one line of text about what is being prepared."""

    def __call__(self, text: str) -> None: ...


class Executable(Protocol):
    """A compiled segment; calling it runs one batch and updates the cache."""

    def __call__(
        self, batch: Batch, cache: KVCache, values: Values = NO_VALUES
    ) -> Mapping[str, NDArray[np.float32]]:
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
        ...

    def close(self) -> None:
        """Releases threads, memory and devices; calling it twice is allowed."""
        ...


@dataclass(slots=True)
class Launches:
    """What an executable's native programs cost besides their kernels, counted as it runs.

    Attributes:
        instructions: kernel calls of one run.
        waits: of those, how many all threads wait for before they go on.
        runs: so far.
        native_s: seconds inside native programs so far; the rest of a call is Python.
        paths: how the kernels get at their products, as the machine profile names it.
    """

    instructions: int = 0
    waits: int = 0
    runs: int = 0
    native_s: float = 0.0
    paths: tuple[str, ...] = ()


@runtime_checkable
class Counts(Protocol):
    """An executable that counts its launches; not all do."""

    launches: Launches


@runtime_checkable
class Explains(Protocol):
    """A back-end that can say where its estimates come from; not all do."""

    def cost_basis(self) -> str:
        """What ``cost`` stands on, in a line: measurements or assumptions."""
        ...


@runtime_checkable
class Expects(Protocol):
    """A back-end whose estimates depend on how it will be compiled; not all do."""

    def expect(self, threads: int, trits: bool) -> None:
        """Says before planning what ``CompileOptions`` will say."""
        ...


@runtime_checkable
class Accelerator(Protocol):
    """A back-end that runs some nodes of a model and leaves the others to its companions.

    Asked for by name it takes every node that it supports, whatever that costs. Otherwise it
    takes part in a plan only if a device is named for it (``EDGERUN_<NAME>_DEVICE``).

    Attributes:
        companions: names of the back-ends that run the rest, and everything if the device fails.
    """

    companions: tuple[str, ...]


@runtime_checkable
class HasDevices(Protocol):
    """A back-end that can use one of several devices."""

    def use_device(self, name: str) -> None:
        """Chooses a device; called before anything else.

        Raises:
            InputError: there is none of that name; the message lists those there are.
        """
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """What a device did, as a table.

    Attributes:
        title: what the figures are, and whether they were simulated, measured or modelled.
        rows: figures by name; all rows have the same names.
        notes: what else there is to say, a line each.
    """

    title: str
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()


@runtime_checkable
class Reports(Protocol):
    """A back-end that counts what its device does; not all do."""

    def report(self) -> Report | None:
        """What was counted since it was made; None before anything ran."""
        ...


class Backend(Protocol):
    """A way to run graph nodes on some device.

    Attributes:
        name: how users call it.
        whole_graph: it runs the original model file or nothing, so the planner does not mix it
            with others.
    """

    name: str
    whole_graph: bool

    def probe(self) -> Support:
        """Whether this machine can run the back-end at all; cheap, imports lazily."""
        ...

    def supports(self, graph: Graph, node: Node, phase: Phase) -> Support:
        """Whether the back-end can run this node in this phase."""
        ...

    def cost(self, graph: Graph, node: Node, phase: Phase, rows: int) -> float:
        """Estimated seconds for the node with ``rows`` token rows."""
        ...

    def compile(self, segment: Graph, phase: Phase, options: CompileOptions) -> Executable:
        """Turns a segment, all of whose nodes are supported, into a program."""
        ...

    def close(self) -> None:
        """Releases what its executables share; they must not be called after it."""
        ...
