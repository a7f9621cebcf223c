"""What the driver does when an overlay works, and when it does not; on the software overlay."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import expected_cycles
from edgerun_hw.overlay.driver import MAX_POLL_CYCLES, PATIENCE, Tlmm
from edgerun_hw.overlay.errors import CommandError, OverlayError, OverlayTimeoutError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.overlay.port import Ticket
from edgerun_hw.simulate.fake import FakeDevice, Faults
from tests.hw.support.problems import random_problem


@pytest.mark.parametrize("preset", ["tiny", "tiny-prefill", "decode-300"])
@pytest.mark.parametrize("mode", list(LookupMode))
def test_commands_give_the_right_answer(preset, mode):
    device = FakeDevice(PRESETS[preset])
    overlay = Tlmm(device)
    problems = [random_problem(overlay, seed, mode) for seed in range(20)]
    overlay.wait(overlay.submit_all([command for command, _ in problems]))
    assert all(right() for _, right in problems)


def test_submit_all_refuses_everything_when_one_is_impossible():
    device = FakeDevice()
    overlay = Tlmm(device)
    command, _ = random_problem(overlay)
    with pytest.raises(ValueError, match="tiles"):
        overlay.submit_all([command, replace(command, tiles=0)])
    assert device.read(regs.SUBMITTED) == 0
    with pytest.raises(ValueError, match="no commands"):
        overlay.submit_all([])


def test_wedged_overlay_is_named_by_its_watchdog_and_works_after_a_reset():
    device = FakeDevice(faults=Faults(wedged={2}))
    overlay = Tlmm(device, watchdog_cycles=5000)
    command, right = random_problem(overlay)
    ticket = overlay.submit_all([command] * 4)
    with pytest.raises(CommandError, match="watchdog at command 2") as info:
        overlay.wait(ticket)
    assert info.value.tag == 2
    overlay.reset()
    overlay.wait(overlay.submit(command))
    assert right()


def test_silently_wedged_overlay_times_out_in_bounded_cycles():
    device = FakeDevice(faults=Faults(wedged={0}, silent=True))
    overlay = Tlmm(device, timeout_cycles=100_000)
    command, _ = random_problem(overlay)
    with pytest.raises(OverlayTimeoutError, match="no progress for .* with 1 commands pending"):
        overlay.wait(overlay.submit(command))
    assert device.read(regs.CYCLES) < 400_000


def test_commands_may_take_longer_than_the_time_out_alone_and_together():
    """What they should take is added to it, and each that completes begins it anew."""
    device = FakeDevice()
    patient, other = Tlmm(device, timeout_cycles=100), FakeDevice()
    command, right = random_problem(patient)
    cycles = expected_cycles(command, patient.capabilities.rows_per_beat)
    assert cycles > 5 * 100
    patient.wait(patient.submit(command))
    assert right()
    overlay = Tlmm(other, timeout_cycles=MAX_POLL_CYCLES)
    command, right = random_problem(overlay)
    commands = [command] * (2 * (PATIENCE + MAX_POLL_CYCLES // cycles))
    overlay.wait(overlay.submit_all(commands))
    assert right()


def test_reset_that_sticks_times_out():
    device = FakeDevice(faults=Faults(reset_sticks=True))
    with pytest.raises(OverlayTimeoutError, match="does not come out of its reset"):
        Tlmm(device, timeout_cycles=10_000)


def test_device_that_disappears_is_an_error_and_not_a_hang():
    device = FakeDevice()
    overlay = Tlmm(device)
    command, _ = random_problem(overlay)
    ticket = overlay.submit(command)
    device.faults.gone = True
    with pytest.raises(OverlayError):
        overlay.wait(ticket)


def test_memory_that_is_not_there_is_a_read_error():
    device = FakeDevice()
    overlay = Tlmm(device)
    command, _ = random_problem(overlay)
    with pytest.raises(CommandError, match="read_response"):
        overlay.wait(overlay.submit(replace(command, x=0x10)))
    overlay.reset()
    with pytest.raises(CommandError, match="write_response"):
        overlay.wait(overlay.submit(replace(command, y=0x10)))


@pytest.mark.parametrize("flag", [regs.ERROR_OVERRUN, regs.ERROR_BAD_LENGTH])
def test_error_in_the_middle_of_a_queue(flag):
    device = FakeDevice(faults=Faults(errors={3: flag}))
    overlay = Tlmm(device)
    command, right = random_problem(overlay)
    with pytest.raises(CommandError) as info:
        overlay.wait(overlay.submit_all([command] * 6))
    assert info.value.tag == 3
    overlay.reset()
    overlay.wait(overlay.submit_all([command] * 6))
    assert right()


def test_software_overlay_finds_a_forgotten_flush_and_a_full_queue():
    device = FakeDevice()
    buffer = device.allocate(16)
    buffer.array[:] = 7
    assert not device.memory[:16].any()
    for _ in range(device.geometry.queue_depth + 1):
        device.write(regs.CMD_ROW_BEATS, 0xFFFF)
        device.write(regs.CMD_TILES, 0xFFFF)
        device.write(regs.CMD_PUSH, 1)
    assert regs.ERROR_QUEUE_OVERFLOW.of(device.read(regs.ERROR))
    assert regs.STATUS_QUEUE_FULL.of(device.read(regs.STATUS))
    # As in the RTL (`test_shell.py`): what was lost was not submitted.
    assert device.read(regs.SUBMITTED) == device.geometry.queue_depth


def test_software_memory_is_given_back_in_whole():
    device = FakeDevice(memory_bytes=1 << 20)
    buffers = [device.allocate(n) for n in (1, 4097, 100_000)]
    with pytest.raises(MemoryError):
        device.allocate(1 << 20)
    for buffer in (buffers[1], buffers[0], buffers[2]):
        buffer.free()
        buffer.free()
    assert device.allocated_bytes == 0
    device.allocate(1 << 20).free()
    with pytest.raises(ValueError, match="freed"):
        buffers[0].flush()


@pytest.mark.parametrize("seed", range(30))
def test_random_use_with_random_faults_never_hangs_or_lies(seed):
    """Whatever goes wrong, an error is told, and what was reported complete is right."""
    rng = random.Random(seed)
    flags = [regs.ERROR_UNDERRUN, regs.ERROR_WRITE_RESPONSE, regs.ERROR_BAD_LENGTH]
    device = FakeDevice()
    overlay = Tlmm(device, watchdog_cycles=4000, timeout_cycles=20_000)
    problems = [random_problem(overlay, seed, size=20) for seed in range(4)]
    device.faults.errors = {n: rng.choice(flags) for n in rng.sample(range(200), 4)}
    device.faults.wedged = set(rng.sample(range(200), 3))
    device.faults.silent = rng.random() < 0.5
    last: dict[int, Ticket] = {}
    errors = 0
    for _ in range(120):
        try:
            which = rng.randrange(4)
            if rng.random() < 0.6 or which not in last:
                last[which] = overlay.submit(problems[which][0])
            else:
                overlay.wait(last[which])
                assert problems[which][1]()
        except OverlayError:
            errors += 1
            last.clear()
            overlay.reset()
    assert device.read(regs.CYCLES) < 10_000_000
    assert errors <= 7
