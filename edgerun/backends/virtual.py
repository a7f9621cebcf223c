"""A device with a clock of its own: what a plan does on a machine that nobody has here.

A file says what a laptop's processor and device can do, each figure with its source or
``"assumed"``. Plans are made as if this were that laptop; the numbers come from the processor that
is here, and the time that a call would take is added up. Nothing that it says is a speed of
anything real, so all of it is called simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Shape,
    Support,
    Values,
)
from edgerun.backends.estimates import kept_bytes, node_seconds
from edgerun.backends.figures import Report
from edgerun.errors import InputError, UnsupportedError
from edgerun.files.plain import read_plain
from edgerun.graph.ir import Graph, Node
from edgerun.machine.devices import DeviceProfile
from edgerun.machine.profile import MachineProfile
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore

NAME = "virtual"
MAX_FILE_BYTES = 1 << 20
TEXTS = {"measured", "source", "sources", "version"}


@dataclass(frozen=True, slots=True)
class Laptop:
    """A machine that is not here.

    Attributes:
        title: what it is.
        date: of the figures, ``YYYY-MM-DD``.
        host: its processor.
        device: what is beside it.
        sources: where figures come from, or ``"assumed"``, by names such as ``"device.calls"``.
    """

    title: str
    date: str
    host: MachineProfile
    device: DeviceProfile
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Laptop:
        """Reads a file.

        Raises:
            InputError: there is none, it does not describe a laptop, or a figure has no source.
        """
        try:
            laptop = msgspec.json.decode(read_plain(path, MAX_FILE_BYTES), type=cls)
        except OSError as error:
            raise InputError(f"the laptop {path} cannot be read: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise InputError(f"{path} does not describe a laptop: {error}") from error
        if not laptop.host.complete:
            raise InputError(
                f"{path} does not describe a laptop: its host needs bandwidth, rates, fork_join_s"
            )
        without = sorted(laptop.figures().difference(laptop.sources))
        if without:
            raise InputError(
                f"{path} has no source for {', '.join(without)}: name one, or say that the figure "
                "is assumed"
            )
        return laptop

    def figures(self) -> set[str]:
        """Names of the figures that were given."""
        host = _given(self.host, MachineProfile())
        device = _given(self.device, DeviceProfile({}))
        return {f"host.{name}" for name in host} | {f"device.{name}" for name in device}


Profile = TypeVar("Profile", MachineProfile, DeviceProfile)


def _given(profile: Profile, nothing: Profile) -> list[str]:
    """Names of the figures in which a profile differs from one without any."""
    names = [each.name for each in fields(nothing) if each.name not in TEXTS]
    return [name for name in names if getattr(profile, name) != getattr(nothing, name)]


@dataclass(slots=True)
class Clock:
    """What a device would have needed.

    Attributes:
        calls: so far.
        tokens: in these calls.
        seconds: that they would have taken.
    """

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


class VirtualBackend(Backend):
    """Runs segments on the processor, and reckons with a laptop's device."""

    companions = ("cpu",)
    is_simulated = True

    def __init__(self) -> None:
        self.name = NAME
        self._laptop: Laptop | None = None
        self._clock = Clock()

    def use_device(self, name: str) -> None:
        """Reads the laptop from a file.

        Raises:
            InputError: see ``Laptop.read``.
        """
        self._laptop = Laptop.read(Path(name))
        self.name = f"{NAME}:{Path(name).stem}"

    def probe(self) -> Support:
        """Whether a file was named."""
        if self._laptop is None:
            return Support(False, "no laptop was named: --device virtual:FILE")
        return Support(True, f"{self._laptop.title}: simulated")

    def companion_choices(self) -> Mapping[str, Any]:
        """The laptop's processor, in whose place the one that is here computes."""
        return {"machine": self._laptop.host} if self._laptop else {}

    def device_profile(self) -> DeviceProfile | None:
        """What the file says."""
        return self._laptop.device if self._laptop else None

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """All ops: the processor computes them."""
        return Support(node.op in OPS, "" if node.op in OPS else f"no op '{node.op}'")

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """What the file says that it takes."""
        if self._laptop is None:
            raise UnsupportedError(self.probe().reason)
        return node_seconds(self._laptop.device, graph, node, shape)

    def cost_basis(self) -> str:
        """Says that nothing was measured here."""
        if self._laptop is None:
            return ""
        sources = sorted(self._laptop.sources.items())
        texts = [f"{name}: {text}" for name, text in sources if name.startswith("device.")]
        return f"simulated, {self._laptop.title}, {self._laptop.date}: {'; '.join(texts)}"

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """The companion's program, with the clock of the device.

        Raises:
            UnsupportedError: no laptop was named, or nothing computes in its place.
        """
        if self._laptop is None or options.fallback is None:
            raise UnsupportedError(
                f"{self.name} computes nothing itself: name a laptop, and no other back-end"
            )
        program = options.fallback(segment, shape)
        return VirtualExecutable(program, segment, shape, self._laptop.device, self._clock)

    def report(self) -> Report | None:
        """What the device would have taken."""
        clock = self._clock
        if self._laptop is None or not clock.calls:
            return None
        row = {
            "calls": clock.calls,
            "tokens": clock.tokens,
            "simulated ms a call": round(1e3 * clock.seconds / clock.calls, 3),
        }
        return Report(f"{self.name}, {self._laptop.title}: simulated", [row])


class VirtualExecutable(Executable):
    """A program of the processor, and what the same would take elsewhere."""

    def __init__(
        self, program: Executable, segment: Graph, shape: Shape, device: DeviceProfile, clock: Clock
    ) -> None:
        """Takes what computes, what it computes, and what counts."""
        self._program, self._segment, self._shape = program, segment, shape
        self._device, self._clock = device, clock
        self._token_bytes = sum(map(kept_bytes, segment.nodes))

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the batch here; see ``Executable``."""
        clock = self._clock
        clock.seconds += self._seconds(batch)
        clock.calls += 1
        clock.tokens += batch.rows
        return self._program(batch, cache, values)

    def close(self) -> None:
        """Closes the program."""
        self._program.close()

    def _seconds(self, batch: Batch) -> float:
        cached = int(np.max(batch.positions, initial=0)) + 1 - batch.rows
        shape = Shape(self._shape.phase, batch.rows, max(cached, 0))
        nodes = (
            node_seconds(self._device, self._segment, each, shape) for each in self._segment.nodes
        )
        handover = self._device.store_seconds(self._token_bytes * batch.rows)
        return sum(nodes) + self._device.calls_seconds(batch.rows) + handover


def make() -> VirtualBackend:
    """Makes the back-end."""
    return VirtualBackend()
