"""A stand-in for a GPU: a process with memory of its own behind a slow link, on this machine.

It shares layers of experts with the processor as a GPU would: by the schedule of
``offload/schedule.py``, with weights that must be uploaded first, and with failures. It is there
to try that out where there is no GPU. It says nothing about any GPU, and makes nothing faster but
where a core would idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import (
    Backend,
    Chain,
    CompileOptions,
    Executable,
    Report,
    Shape,
    Support,
)
from edgerun.backends.cpu import CpuBackend
from edgerun.errors import BackendError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.offload.standin.device import EXAMPLE, StandinDevice

if TYPE_CHECKING:
    from edgerun.offload.estimates import Estimates
    from edgerun.offload.standin.executable import Layer, SharedLayer
    from edgerun.offload.standin.session import Session
    from edgerun.offload.standin.tally import Tally

ASSUMED_MACS_S = 20e9  # of a core; replaced by what is seen
ASSUMED_READ_BYTES_S = 10e9


class StandinBackend(Backend):
    """Shares layers of experts with another process; see ``edgerun.backends.base.Backend``.

    Attributes:
        companions: run the other ops, and everything if the stand-in fails.
    """

    name = "standin"
    companions = ("cpu",)

    def __init__(self) -> None:
        """Has no device yet."""
        self._device: StandinDevice | None = None
        self._cpu = CpuBackend()
        self._session: Session | None = None
        self._estimates: Estimates | None = None
        self._tallies: list[Tally] = []
        self._numbers: dict[str, int] = {}

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes what the processor's share is configured with."""
        self._cpu.configure(given)

    def use_device(self, name: str) -> None:
        """Chooses memory and link, as ``device.EXAMPLE`` does.

        Raises:
            InputError: it is not written like that.
        """
        self._device = StandinDevice.read(name)

    def probe(self) -> Support:
        """Whether a device was named and this system can share memory so."""
        import os

        if self._device is None:
            return Support(False, f"no device was named: --device standin:{EXAMPLE}")
        if not hasattr(os, "memfd_create"):
            return Support(False, "it shares memory by memfd_create, which Linux has")
        return Support(True, "a process of this machine; says nothing about any GPU")

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Layers of experts."""
        if node.op != "experts":
            return Support(False, "a stand-in for a GPU shares layers of experts only")
        return self._cpu.supports(graph, node, shape)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """What the processor alone would need: nothing is claimed before it was seen."""
        return self._cpu.cost(graph, node, shape)

    def cost_basis(self) -> str:
        """Says what the estimates of ``cost`` stand on."""
        return "assumed as slow as the processor alone; costs of experts are measured as it runs"

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Prepares the weights, and starts the process with the first layer.

        Raises:
            UnsupportedError: no device was named.
            BackendError: the stand-in fails, and is required.
        """
        from edgerun.offload.standin.executable import Layer

        if self._device is None:
            raise UnsupportedError(self.probe().reason)
        parts: list[SharedLayer] = []
        for node in segment.nodes:
            number = self._numbers.setdefault(node.name, len(self._numbers))
            layer = Layer.of(number, node, segment, shape, self._cpu, options)
            part = self._share(layer, segment, shape, options)
            if part is None:
                layer.places.close()
                return _elsewhere(segment, shape, options)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Chain(parts)

    def report(self) -> Report | None:
        """Times by phase, and what became of the stand-in."""
        from edgerun.offload.standin.tally import report

        if self._session is None:
            return None
        session = self._session
        notes = [f"{session.uploaded_bytes / 1e6:.1f} MB uploaded, {session.resets} resets"]
        if session.failure:
            notes.append(f"the stand-in is not used any more: {session.failure}")
        return report(self._tallies, notes)

    def close(self) -> None:
        """Ends the process and the threads; the executables must not be called after it."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._cpu.close()

    def _share(
        self, layer: Layer, segment: Graph, shape: Shape, options: CompileOptions
    ) -> SharedLayer | None:
        """A layer on both; None if it is unlike the first one, or calls have more rows."""
        from edgerun.offload.standin.executable import SharedLayer
        from edgerun.offload.standin.session import Session
        from edgerun.offload.standin.tally import Tally

        rows, is_first = shape.rows * int(layer.node.attrs["top_k"]), self._session is None
        assert self._device is not None
        if self._session is None:
            hidden, width = layer.shape
            self._session = Session(self._device, layer.layout, hidden, rows, layer.node.attrs)
            self._estimates = _assumed(layer.layout.nbytes, 3 * hidden * width, self._device)
        session = self._session
        is_alike = session.takes(layer.layout, layer.node.attrs)
        if not is_alike or session.regions.rows < rows:
            return None
        tally = next((each for each in self._tallies if each.phase is shape.phase), None)
        if tally is None:
            tally = Tally(shape.phase)
            self._tallies.append(tally)
        assert self._estimates is not None
        part = SharedLayer(segment, shape, layer, session, self._estimates, tally, options)
        if is_first:
            session.open(part.test)
            if session.failure and options.required:
                raise BackendError(f"the stand-in does not run: {session.failure}")
        return part


def _assumed(nbytes: int, macs: int, device: StandinDevice) -> Estimates:
    """Costs of an expert before anything was seen."""
    from edgerun.offload.estimates import Estimate, Estimates

    cpu, there = (Estimate(nbytes / ASSUMED_READ_BYTES_S, macs / ASSUMED_MACS_S) for _ in range(2))
    return Estimates(cpu, there, Estimate(device.latency_s + nbytes / device.link_bytes_s))


def _elsewhere(segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
    """The companion's program for a layer that is unlike the others.

    Raises:
        BackendError: the stand-in is required, or there is no companion.
    """
    if options.required or options.fallback is None:
        raise BackendError("the stand-in has slots for layers like the first one only")
    return options.fallback(segment, shape)


def make() -> StandinBackend:
    """Makes the back-end."""
    return StandinBackend()
