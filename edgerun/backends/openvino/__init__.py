"""The OpenVINO back-end: NPUs and GPUs of Intel's, and the CPU to compare with.

Segments are translated op by op, with static shapes. Pages in host memory hold all keys and values
after every call, so that the CPU can go on from any step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Backend, CompileOptions, Executable, Shape, Support
from edgerun.backends.estimates import node_seconds
from edgerun.backends.figures import Handover, Report
from edgerun.backends.openvino.devices import DEVICES, NAME, Device, all_devices, find_device
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import node_work
from edgerun.kernels.host.cores import worker_threads
from edgerun.machine.devices import DeviceProfile
from edgerun.machine.profile import CALIBRATE, machine_profile

if TYPE_CHECKING:
    from edgerun.backends.openvino.session import Session

# Nothing was measured: only the order of magnitude is meant.
SECONDS_PER_MAC, SECONDS_A_NODE = 2e-11, 1e-5


class OpenvinoBackend(Backend):
    """Runs segments on one of OpenVINO's devices; see ``edgerun.backends.base.Backend``.

    Attributes:
        companions: what a device computes is compared with, and what goes on when it fails.
    """

    companions = ("cpu",)
    mirrors = True

    def __init__(self) -> None:
        """Knows no device yet."""
        self.name = NAME
        self._device: Device | None = None
        self._session: Session | None = None
        self._measured: DeviceProfile | None = None
        self._asked: int | None = None  # worker threads

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes the number of threads, for devices that are the processor."""
        self._asked = given.get("threads")

    def use_device(self, name: str) -> None:
        """Chooses a device by its name in ``devices.py``, which becomes part of the back-end's.

        Raises:
            InputError: there is none of that name.
        """
        self._device = find_device(name)
        self.name = self._device.title

    def devices(self) -> Mapping[str, Support]:
        """What there is of what OpenVINO has plug-ins for."""
        return {device.name: device.probe() for device in all_devices()}

    def probe(self) -> Support:
        """Whether a device was named and what it needs is here; opens nothing."""
        if self._device is None:
            return Support(False, f"no device was named: --device {', '.join(DEVICES)}")
        return self._device.probe()

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Whether the node's op has a translation that takes it."""
        from edgerun.backends.openvino.translate.registry import TRANSLATORS

        if node.op not in TRANSLATORS:
            return Support(False, f"no translation of '{node.op}'")
        return TRANSLATORS[node.op].supports(graph, node)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """From what was measured of the device; else a guess from the multiplications."""
        if profile := self.device_profile():
            return node_seconds(profile, graph, node, shape)
        work = node_work(graph, node, graph.shapes)
        macs = (work.macs + work.cached_macs * shape.cached) * shape.rows
        return macs * SECONDS_PER_MAC + SECONDS_A_NODE

    @property
    def is_processor(self) -> bool:
        """Whether the device has the processor's threads."""
        return self._device is not None and self._device.threads

    def device_profile(self) -> DeviceProfile | None:
        """What was measured of the device with this version of its driver."""
        if self._measured is None and self._device is not None:
            self._measured = machine_profile().device(self._device.title, self._device.version)
        return self._measured

    def chunks(self) -> tuple[int, ...]:
        """Rows of networks."""
        from edgerun.backends.openvino.pieces import ROWS

        return tuple(sorted({rows for choices in ROWS.values() for rows in choices}))

    def measures(self) -> Mapping[str, str]:
        """The devices that are here and stand for themselves."""
        here = (each for each in all_devices() if each.calibrated and each.probe())
        return {device.name: device.version for device in here}

    def cost_basis(self) -> str:
        """Says what the estimates stand on, and what has to be known of the device."""
        if self._device and self._device.caveat:
            return f"{self._basis()}; {self._device.description}"
        return self._basis()

    def _basis(self) -> str:
        profile = self.device_profile()
        if profile:
            return f"measured {profile.measured} with {profile.version}"
        others = self._device and machine_profile().other_versions(
            self._device.title, self._device.version
        )
        if others:
            return f"assumed: measured with {others[-1]} only; {CALIBRATE} this device anew"
        return (
            "assumed: this device was not measured, so it takes part only where it is named; "
            f"{CALIBRATE} it"
        )

    def weight_bytes(self, graph: Graph, node: Node, name: str) -> int:
        """Bytes of a constant on the device; the host looks embeddings up."""
        from edgerun.backends.openvino.matrices import stored_bytes

        constant = graph.constants[name]
        if self._device is None:
            return constant.nbytes
        return 0 if node.op == "embedding" else stored_bytes(constant, self._device.stored)

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Translates the segment and compares what the device computes with the companion.

        Raises:
            UnsupportedError: no device was named.
            BackendError: the device is not there, refuses the segment, or computes something else.
        """
        from edgerun.backends.openvino.executable import OpenvinoExecutable
        from edgerun.backends.openvino.session import Session

        if self._device is None:
            raise UnsupportedError(self.probe().reason)
        if self._session is None:
            session = Session(self._device, self._asked or worker_threads(None))
            session.check_device()
            self._session = session
        return OpenvinoExecutable(segment, shape, self._session, options)

    def handover(self) -> Handover | None:
        """What its networks moved; None before any was wanted."""
        return self._session.handover() if self._session else None

    def report(self) -> Report | None:
        """Calls and times by network, and what became of the device."""
        return self._session.report() if self._session else None

    def close(self) -> None:
        """Lets OpenVINO go; the executables must not be called after it."""
        self._session = None


def make() -> OpenvinoBackend:
    """Makes the back-end."""
    return OpenvinoBackend()
