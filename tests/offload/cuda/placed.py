"""A golden model shared with a simulated GPU, whose experts go where they are told to."""

from __future__ import annotations

from edgerun.offload.cuda import CudaBackend
from edgerun.offload.estimates import Estimate, Estimates

FORM = "olmoe", "int4"
PROMPT = [256, 1]


class Fixed(Estimate):
    """A cost that stays what it is: in the simulator the GPU would soon get nothing to do."""

    def _learn(self, kinds: object, expected: float, seconds: float) -> None:
        pass


class Placed(CudaBackend):
    """Experts go where they are told to, by costs."""

    def __init__(self, cpu_s: float, gpu_s: float, slots: int) -> None:
        super().__init__()
        self.prices, self.slot_count = (cpu_s, gpu_s), slots
        self.configure({"threads": 1, "share_always": True})

    def slots(self, slot_bytes: int) -> int:
        del slot_bytes
        return self.slot_count

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        cpu_s, gpu_s = self.prices
        return Estimates(Fixed(cpu_s), Fixed(gpu_s), Fixed(gpu_s), exchange_s=1e-9)


def on_gpu() -> Placed:
    """All experts on the GPU."""
    return Placed(1.0, 1e-6, 16)
