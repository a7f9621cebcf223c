"""A GPU of NVIDIA's as a device with slots for experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numba import cuda

from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.offload.cuda.gpu import free_bytes
from edgerun.offload.cuda.life import Life
from edgerun.offload.cuda.programs import ExpertPrograms
from edgerun.offload.cuda.slots import matrices_of
from edgerun.offload.sharing.device import (
    ALL,
    MAX_SLOTS,
    U8,
    Answer,
    Device,
    DeviceError,
    DeviceSizes,
    Product,
)

MARGIN_BYTES = 512 << 20  # that are left free unless somebody says how much to take
# Whose memory must not be given back: a parent's in its child, or what the GPU may still write to.
_KEPT: list[Life] = []


class CudaDevice(Device):
    """See ``Device``.

    After an error of CUDA's its context may be of no use any more; it is not destroyed, because
    other libraries of the process may share it: then the next life fails, too, and is the last.
    """

    title = "the GPU"

    def __init__(
        self,
        number: int,
        slots: int,
        layout: SlotLayout,
        widths: tuple[int, int],
        rows: int,
        attributes: Mapping[str, Any],
    ) -> None:
        """Takes no memory yet.

        Args:
            number: of the GPU.
            slots: for experts.
            layout: of a slot.
            widths: of a row, and of one between the products.
            rows: that go to the device in one command.
            attributes: of the layers.
        """
        self.sizes = DeviceSizes(layout.nbytes, slots, rows, *widths)
        self._number, self._activation = number, str(attributes["activation"])
        self._matrices = matrices_of(layout, str(attributes["activations"]))
        self._life: Life | None = None
        self._uploaded_bytes = 0

    @property
    def uploaded_bytes(self) -> int:
        return self._uploaded_bytes + (self._life.uploaded_bytes if self._life else 0)

    def start(self) -> None:
        try:
            gpu = cuda.gpus[self._number]
            with gpu:
                _check_free(self.sizes)
                life = Life(gpu, ExpertPrograms(self.sizes, self._matrices, self._activation))
        except DeviceError:
            raise
        except Exception as error:  # Numba's many, none of which has a common base
            raise DeviceError(f"it does not start: {type(error).__name__}: {error}") from error
        self._life, self.x, self.inner, self.out = life, life.x, life.inner, life.out

    def upload(self, slot: int, source: U8, then: Callable[[float], None]) -> None:
        assert self._life is not None
        self._life.upload(slot * self.sizes.slot_bytes, source, then)

    def send(self, number: int, first: int, slots: Sequence[int], product: Product = ALL) -> None:
        if self._life is not None:  # else an upload ended while the device was stopped
            self._life.send(number, first, slots, product)

    def answer(self, patience_s: float) -> Answer:
        assert self._life is not None
        return self._life.answer(patience_s)

    def check(self) -> None:
        assert self._life is not None
        self._life.check()

    def stop(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            self._uploaded_bytes += life.uploaded_bytes
            _KEPT.append(life)  # also if Ctrl-C cuts off what follows
            if life.close():
                _KEPT.remove(life)

    def forget(self) -> None:
        if self._life is not None:
            _KEPT.append(self._life)
            self._life = None


def slots_of(number: int, memory_bytes: int | None, slot_bytes: int) -> int:
    """How many slots there is room for.

    Args:
        number: of the GPU.
        memory_bytes: for slots; None for what is free, less a margin.
        slot_bytes: of one.

    Raises:
        DeviceError: there is no room for one, or the GPU does not answer.
    """
    if memory_bytes is None:
        free = free_bytes(number)
        room = min(free - MARGIN_BYTES, MAX_SLOTS * slot_bytes)
        told = f"{free / 1e6:.0f} MB of the GPU's memory are free, of which 512 are left alone,"
    else:
        room, told = memory_bytes, f"gpu_memory is {memory_bytes / 1e6:.3f} MB"
    if room < slot_bytes:
        raise DeviceError(
            f"{told} and an expert takes {slot_bytes / 1e6:.3f}: allow "
            f"{-(-slot_bytes // 1000)}K or more"
        )
    return min(int(room) // slot_bytes, MAX_SLOTS)


def _check_free(sizes: DeviceSizes) -> None:
    """Refuses to take more of the current GPU's memory than is free."""
    free = cuda.current_context().get_memory_info()[0]
    if sizes.nbytes > free:
        raise DeviceError(
            f"its slots take {sizes.nbytes / 1e6:.3f} MB of its memory, of which "
            f"{free / 1e6:.3f} are free: end what else uses it, or give less gpu_memory"
        )
