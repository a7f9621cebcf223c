"""GPUs of NVIDIA's, which compute experts that lie in their memory (the extra ``cuda``).

A GPU shares layers of experts with the processor as ``offload/sharing`` says, by kernels in Numba's
CUDA, which the driver's own functions start. One GPU has run it, an H100, with the bits of the
processor (docs/experts.md has its figures); tests run it in Numba's simulator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Support
from edgerun.errors import InputError
from edgerun.graph.ir import Graph, Node
from edgerun.offload.sharing.backend import ASSUMED_MACS_S, ASSUMED_READ_BYTES_S, SharingBackend
from edgerun.values import shown

if TYPE_CHECKING:
    from edgerun.offload.estimates import Estimates
    from edgerun.offload.sharing.device import Device
    from edgerun.offload.sharing.layer import Layer

# Of a GPU and its link, until they are seen.
ASSUMED_GPU_BYTES_S, ASSUMED_LINK_BYTES_S, ASSUMED_CALL_S = 100e9, 8e9, 50e-6
# Beside a layer's makespan, as replies of OLMoE beside an H100 had at most (docs/experts.md).
ASSUMED_AROUND_S = 0.35e-3


class CudaBackend(SharingBackend):
    """Shares layers of experts with a GPU; see ``SharingBackend``."""

    name = "cuda"
    title = "the GPU"
    chooses_device = True
    takes_gpu_memory = True
    report_title = "layers shared with a GPU, measured"

    def __init__(self) -> None:
        """Uses the first GPU, unless another is chosen."""
        super().__init__()
        self._number = 0
        self._memory_bytes: int | None = None

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes ``gpu_memory``, in bytes, and what the processor's share is configured with."""
        super().configure(given)
        self._memory_bytes = given.get("gpu_memory")

    def use_device(self, name: str) -> None:
        """Chooses a GPU by its number.

        Raises:
            InputError: it is no number.
        """
        if not re.fullmatch(r"\d{1,3}", name):
            raise InputError(
                f"the GPU {shown(name)} is no number: expected one such as 0, as in --device "
                "cuda:0 or EDGERUN_CUDA_DEVICE=0"
            )
        self._number = int(name)

    def probe(self) -> Support:
        """Whether the GPU is there; loads Numba's CUDA and the driver."""
        from edgerun.offload.cuda.gpu import gpu_support

        return gpu_support(self._number)

    def obstacle(self, graph: Graph, node: Node) -> str:
        from edgerun.offload.cuda.obstacles import obstacle

        return obstacle(graph, node)

    def make_device(self, layer: Layer, slots: int, rows: int) -> Device:
        from edgerun.offload.cuda.arithmetic import SIMULATED
        from edgerun.offload.cuda.device import CudaDevice

        if SIMULATED:
            self.report_title = "layers shared with a GPU that is simulated: no time is any GPU's"
        attributes = layer.node.attrs
        return CudaDevice(self._number, slots, layer.layout, layer.shape, rows, attributes)

    def slots(self, slot_bytes: int) -> int:
        from edgerun.offload.cuda.device import slots_of

        return slots_of(self._number, self._memory_bytes, slot_bytes)

    def assumptions(self) -> str:
        return (
            f"a GPU that reads {ASSUMED_GPU_BYTES_S / 1e9:.0f} GB/s and a link of "
            f"{ASSUMED_LINK_BYTES_S / 1e9:.0f} GB/s, {ASSUMED_CALL_S * 1e6:.0f} us a product or "
            f"upload, {ASSUMED_AROUND_S * 1e3:.2f} ms around each layer of a prompt: assumed; "
            "costs are measured as it runs"
        )

    def device_key(self) -> str:
        from edgerun.offload.cuda.gpu import gpu_name

        return gpu_name(self._number)

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        from edgerun.offload.estimates import Estimate, Estimates

        hidden, width = shape
        return Estimates(
            Estimate(nbytes / ASSUMED_READ_BYTES_S, 3 * hidden * width / ASSUMED_MACS_S),
            Estimate(ASSUMED_CALL_S + nbytes / ASSUMED_GPU_BYTES_S),
            Estimate(ASSUMED_CALL_S + nbytes / ASSUMED_LINK_BYTES_S),
            around=Estimate(ASSUMED_AROUND_S),
        )


def make() -> CudaBackend:
    """Makes the back-end."""
    return CudaBackend()
