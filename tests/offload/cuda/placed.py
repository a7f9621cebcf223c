"""A golden model shared with a simulated GPU, whose experts go where they are told to."""

from __future__ import annotations

from edgerun.backends.base import Shape
from edgerun.offload.cuda import CudaBackend
from edgerun.offload.estimates import Estimates
from tests.support.sharing import Fixed

FORM = "olmoe", "int4"
PROMPT = [256, 1]


class Placed(CudaBackend):
    """Experts go where they are told to, by costs."""

    def __init__(self, cpu_s: float, gpu_s: float, slots: int, *, joins: bool = True) -> None:
        super().__init__()
        self.prices, self.slot_count, self._joins = (cpu_s, gpu_s), slots, joins
        self.configure({"threads": 1, "share_always": True})

    def slots(self, slot_bytes: int) -> int:
        del slot_bytes
        return self.slot_count

    def joins(self, shape: Shape) -> bool:
        return self._joins and super().joins(shape)

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        cpu_s, gpu_s = self.prices
        return Estimates(Fixed(cpu_s), Fixed(gpu_s), Fixed(gpu_s), exchange_s=1e-9)


def on_gpu(*, joins: bool = True) -> Placed:
    """All experts on the GPU; replies inside the program or, as prompts are, outside."""
    return Placed(1.0, 1e-6, 16, joins=joins)
