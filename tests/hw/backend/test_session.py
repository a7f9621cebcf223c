"""The device while a model is loaded: what is cut off or finds no room leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgerun_hw.backend.matrix import DeviceMatrix
from edgerun_hw.backend.products import Product, quantise_activations
from edgerun_hw.backend.session import Session
from edgerun_hw.devices.registry import find_device
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate.fake import FakeDevice
from tests.hw.support.overlays import normal, random_weight, replace_fake

WEIGHT = random_weight(np.random.default_rng(1), "ternary", (400, 64), 64)


def opened(monkeypatch: pytest.MonkeyPatch, device: FakeDevice) -> Session:
    overlay = Tlmm(device)
    replace_fake(monkeypatch, lambda: overlay)
    return Session(find_device("fake"))


def product(matrix: DeviceMatrix) -> Product:
    return Product(
        matrix, quantise_activations(normal(np.random.default_rng(2), 3, 64), "int8_row", 0)
    )


def failing(call: Callable[..., object], error: type[BaseException]) -> Callable[..., object]:
    """Does what ``call`` does the first time, and then raises once."""
    left = [None, error("no more")]

    def cut_off(*arguments: object) -> object:
        wrong = left.pop(0) if left else None
        if wrong is not None:
            raise wrong
        return call(*arguments)

    return cut_off


@pytest.mark.parametrize("nbytes", [4096, 70 << 10, 140 << 10])
def test_a_device_without_memory_leaves_everything_to_the_cpu(nbytes, monkeypatch, caplog):
    device = FakeDevice(PRESETS["decode-300"], memory_bytes=nbytes)
    session = opened(monkeypatch, device)
    weight = random_weight(np.random.default_rng(1), "ternary", (4000, 640), 640)
    assert session.matrix([weight], False) is None
    assert ["is full after 0.0 MB" in record.message for record in caplog.records] == [True]
    session._multiplier.free()
    assert device.allocated_bytes == 0


def test_a_device_that_does_not_open_is_not_said_to_have_been_reset(monkeypatch, caplog):
    def refuse() -> Tlmm:
        raise OverlayError("this board's logic is in use (somebody): wait until that is done")

    replace_fake(monkeypatch, refuse)
    assert Session(find_device("fake")).capabilities is None
    (record,) = caplog.records
    assert "'fake' cannot be opened, so the CPU takes over: this board's logic" in record.message


def test_what_was_cut_off_is_dropped_before_the_next_work(monkeypatch):
    device = FakeDevice(PRESETS["tiny"])
    session = opened(monkeypatch, device)
    first = product(session.matrix([WEIGHT], False))
    session.attempt(lambda: session.multiplier.multiply([first]))
    overlay, again = session.overlay, product(first.matrix)
    for name in ("wait", "submit"):
        with monkeypatch.context() as patch:
            patch.setattr(overlay, name, failing(getattr(overlay, name), KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                session.attempt(lambda: session.multiplier.multiply([again]))
        assert device._queue
        assert session.attempt(lambda: len(device._queue)) == 0
        session.attempt(lambda: session.multiplier.multiply([again]))
        np.testing.assert_array_equal(again.out, first.out)
    assert (session.resets, session.failure) == (0, "")


def test_counters_are_right_after_a_reset_that_leaves_no_room_for_the_test(monkeypatch):
    device = FakeDevice(PRESETS["tiny"])
    session = opened(monkeypatch, device)
    work = product(session.matrix([WEIGHT], False))
    session.attempt(lambda: session.multiplier.multiply([work]))
    monkeypatch.setattr(device, "_free", [])
    device.faults.wedged = [device._accepted]
    session.attempt(lambda: session.multiplier.multiply([work]))
    assert (session.resets, session.failure) == (1, "")
    before, after = session.spent()
    assert 0 < after.lookups - before.lookups < 10_000


def test_a_matrix_that_the_device_fails_to_take_is_not_left_there_in_part(monkeypatch):
    device = FakeDevice(PRESETS["tiny"])
    session = opened(monkeypatch, device)
    before = device.allocated_bytes
    monkeypatch.setattr(device, "allocate", failing(device.allocate, OverlayError))
    matrix = session.matrix(
        [random_weight(np.random.default_rng(7), "ternary", (1600, 64), 64)], False
    )
    assert session.resets == 1
    assert device.allocated_bytes == before + sum(
        -(-buffer.array.nbytes // 4096) * 4096 for buffer in matrix._buffers
    )


def test_closing_drops_what_is_under_way_and_frees_memory_that_programs_hold(monkeypatch):
    device = FakeDevice(PRESETS["tiny"])
    session = opened(monkeypatch, device)
    work = product(session.matrix([WEIGHT], False))
    monkeypatch.setattr(session.overlay, "wait", failing(session.overlay.wait, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        session.attempt(lambda: session.multiplier.multiply([work]))
    assert device._queue
    session.close()
    assert not device._queue
    assert device.allocated_bytes == 0
