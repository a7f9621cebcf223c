"""A stand-in for a GPU: a process with memory of its own behind a slow link, on this machine.

It shares layers of experts with the processor as a GPU would: by the schedule of
``offload/schedule.py``, with weights that must be uploaded first, and with failures. It is there
to try that out where there is no GPU. It says nothing about any GPU, and makes nothing faster but
where a core would idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgerun.backends.base import Support
from edgerun.offload.sharing.backend import ASSUMED_MACS_S, ASSUMED_READ_BYTES_S, SharingBackend
from edgerun.offload.standin.spec import EXAMPLE, StandinSpec

if TYPE_CHECKING:
    from edgerun.offload.estimates import Estimates
    from edgerun.offload.sharing.device import Device
    from edgerun.offload.sharing.layer import Layer


class StandinBackend(SharingBackend):
    """Shares layers of experts with another process; see ``SharingBackend``."""

    name = "standin"
    title = "the stand-in"
    report_title = (
        "layers shared with a stand-in for a GPU: another process of this machine, measured"
    )

    def __init__(self) -> None:
        """Has no device yet."""
        super().__init__()
        self._spec: StandinSpec | None = None

    def use_device(self, name: str) -> None:
        """Chooses memory and link, as ``spec.EXAMPLE`` does.

        Raises:
            InputError: it is not written like that.
        """
        self._spec = StandinSpec.read(name)

    def probe(self) -> Support:
        """Whether a device was named and this system can share memory so."""
        import os

        if self._spec is None:
            return Support(False, f"no device was named: --device standin:{EXAMPLE}")
        if not hasattr(os, "memfd_create"):
            return Support(False, "it shares memory by memfd_create, which Linux has")
        return Support(True, "a process of this machine; says nothing about any GPU")

    def make_device(self, layer: Layer, slots: int, rows: int) -> Device:
        from edgerun.offload.standin.device import StandinDevice

        assert self._spec is not None
        return StandinDevice(self._spec, slots, layer.layout, layer.shape, rows, layer.node.attrs)

    def slots(self, slot_bytes: int) -> int:
        from edgerun.offload.standin.device import slots_of

        assert self._spec is not None
        return slots_of(self._spec, slot_bytes)

    def assumptions(self) -> str:
        assert self._spec is not None
        link, latency = self._spec.link_bytes_s / 1e9, self._spec.latency_s * 1e6
        return f"link {link:.1f} GB/s and {latency:.0f} us an upload, as asked for; a core, assumed"

    def device_key(self) -> str:
        spec = self._spec
        return "" if spec is None else f"link={spec.link_bytes_s:g},latency={spec.latency_s:g}"

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        from edgerun.offload.estimates import Estimate, Estimates

        assert self._spec is not None
        hidden, width = shape
        core = nbytes / ASSUMED_READ_BYTES_S, 3 * hidden * width / ASSUMED_MACS_S
        upload = self._spec.latency_s + nbytes / self._spec.link_bytes_s
        return Estimates(Estimate(*core), Estimate(*core), Estimate(upload))


def make() -> StandinBackend:
    """Makes the back-end."""
    return StandinBackend()
