"""Checks of PYNQ.remote from another host's side; `test_remote.py` starts them.

PYNQ_REMOTE_DEVICES=ADDRESS python remote_checks.py NAME
"""

from __future__ import annotations

import gc
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "hw")]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pynq says that this processor is not a board's
    import pynq

from edgerun_hw.board_side.devices import name_by_digest  # noqa: E402
from edgerun_hw.board_side.pynq_driver import TlmmIP, load_overlay  # noqa: E402
from edgerun_hw.overlay import register_map as regs  # noqa: E402
from edgerun_hw.overlay.geometry import PRESETS  # noqa: E402
from edgerun_hw.simulate.board.device import prepare  # noqa: E402
from tests.hw.support.problems import random_problem  # noqa: E402


def stock_pynq_drives_the_board(folder: Path):
    device = pynq.Device.active_device
    assert type(device).__name__ == "RemoteDevice"
    assert (device.name, device.arch) == ("edgerun-simulation", "aarch64")
    overlay = pynq.Overlay(str(prepare(PRESETS["tiny"], folder)))
    assert type(overlay.tlmm) is TlmmIP
    assert int(overlay.tlmm.register_map.ID) == regs.ID_VALUE
    assert overlay.tlmm.register_map.LIMITS.MAX_ROW_BEATS == 64
    assert abs(pynq.Clocks.fclk0_mhz - 249.9975) < 1e-3
    buffer = pynq.allocate((1000,), "i4")
    buffer[:] = np.arange(1000)
    buffer.flush()
    buffer[:] = 0
    buffer.invalidate()
    assert buffer.tolist() == list(range(1000))
    buffer.freebuffer()


def commands_give_the_right_answer(folder: Path):
    overlay = load_overlay(str(prepare(PRESETS["tiny"], folder)))
    problems = [random_problem(overlay, seed) for seed in range(6)]
    overlay.wait(overlay.submit_all([command for command, _ in problems] * 3))
    assert all(right() for _, right in problems)
    overlay.reset()
    command, right = problems[0]
    overlay.wait(overlay.submit(command))
    assert right()
    del problems, right
    gc.collect()


def another_bitstream_of_the_same_name_is_loaded(folder: Path):
    """Without the digest PYNQ.remote would go on using the first one."""
    for preset in ("tiny", "decode-75"):
        own, linked = folder / preset, folder / f"{preset}-linked"
        own.mkdir()
        linked.mkdir()
        bitfile = prepare(PRESETS[preset], own)
        for suffix in (".bit", ".hwh"):
            bitfile.with_suffix(suffix).rename(own / f"overlay{suffix}")
        named = name_by_digest(own / "overlay.bit", linked)
        assert named.name.startswith("overlay-")
        capabilities = load_overlay(str(named)).capabilities
        assert capabilities.max_row_beats == PRESETS[preset].nb_max


def errors_are_told(folder: Path):
    device = pynq.Device.active_device
    overlay = pynq.Overlay(str(prepare(PRESETS["tiny"], folder)))
    for use, message in (
        (lambda: device.mmap(0xB000_0000, 4096).read(0), "nothing answers at address 0xb0000000"),
        (lambda: device.mmap(0xA000_0000, 1 << 30), "no window has"),
        (lambda: overlay.tlmm.mmio.read(4096), "no part of a window"),
        (lambda: overlay.tlmm.allocate(1 << 28), "in one piece"),
    ):
        try:
            use()
        except (RuntimeError, MemoryError, IndexError) as error:
            assert message in str(error) or isinstance(error, IndexError), error
        else:
            raise AssertionError(message)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        globals()[sys.argv[1]](Path(temporary))
