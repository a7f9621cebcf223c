"""Things that go wrong in the middle of commands, and whether the overlay recovers.

After every mishap the overlay must answer its control port, come out of a soft reset with nothing
left on the bus, and run the next command as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.simulate.cases import make_operands, place, push, random_case, run_cases
from edgerun_hw.simulate.faults import DECERR, SLVERR, Channel, Fault, FaultKind
from edgerun_hw.simulate.simulator import Simulator

WATCHDOG_CYCLES = 3000
SETTLE_CYCLES = 5000  # longer than the watchdog
SETTLE_STEPS = 100
RESET_CYCLES = 20_000
MAX_LOOKUPS = 400
STOPPING = (
    regs.ERROR_UNDERRUN.mask
    | regs.ERROR_OVERRUN.mask
    | regs.ERROR_READ_RESPONSE.mask
    | regs.ERROR_WRITE_RESPONSE.mask
    | regs.ERROR_WATCHDOG.mask
)

Mishap = Callable[[Simulator, np.random.Generator], str]


def run_mishaps(simulator: Simulator, count: int, seed: int) -> list[str]:
    """Runs ``count`` random mishaps, fewer when one leaves something wrong; see ``run_mishap``."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        failures = run_mishap(simulator, rng)
        failures += [f"AXI: {text}" for text in simulator.violations()]
        simulator.clear_violations()
        if failures:
            return failures
    return []


def run_mishap(simulator: Simulator, rng: np.random.Generator) -> list[str]:
    """Pushes some commands, lets something go wrong, resets, and runs a command to compare.

    Returns:
        What was not as it should be, a sentence each.
    """
    simulator.write(regs.WATCHDOG, WATCHDOG_CYCLES)
    mishap = MISHAPS[int(rng.integers(len(MISHAPS)))]
    name = getattr(mishap, "__name__", "mishap").strip("_")
    failures = []
    if complaint := mishap(simulator, rng):
        failures.append(f"{name}: {complaint}")
    simulator.clear_faults()
    simulator.write(regs.CONTROL, regs.CONTROL_SOFT_RESET.mask)
    mask = regs.CONTROL_SOFT_RESET.mask
    if not simulator.run_until(regs.CONTROL, mask, 0, RESET_CYCLES):
        return [*failures, f"{name}: the soft reset does not end"]
    if outstanding := simulator.statistics().outstanding:
        failures.append(f"{name}: {outstanding} bursts are under way after the reset")
    for register in ("ERROR", "SUBMITTED", "COMPLETED"):
        if value := simulator.read(regs.OFFSETS[register]):
            failures.append(f"{name}: {register} is {value:#x} after the reset")
    case = random_case(rng, simulator.geometry, MAX_LOOKUPS)
    return failures + [f"after {name}: {text}" for text in run_cases(simulator, [case])]


def _push_some(simulator: Simulator, rng: np.random.Generator, count: int) -> None:
    for tag in range(count):
        case = random_case(rng, simulator.geometry, MAX_LOOKUPS)
        operands = make_operands(case, simulator.geometry)
        # Their buffers stay mapped: what is under way may still use them.
        push(simulator, place(simulator, case.mode, operands, case.seed).command, tag)


def _reset_at_any_moment(simulator: Simulator, rng: np.random.Generator) -> str:
    _push_some(simulator, rng, int(rng.integers(1, 4)))
    simulator.step(int(rng.integers(600)))
    return ""


def _hard_reset(simulator: Simulator, rng: np.random.Generator) -> str:
    _reset_at_any_moment(simulator, rng)
    simulator.power_on_reset(int(rng.integers(1, 20)))
    watchdog = simulator.read(regs.WATCHDOG)
    simulator.write(regs.WATCHDOG, WATCHDOG_CYCLES)
    return "" if watchdog == regs.WATCHDOG_RESET else f"WATCHDOG is {watchdog:#x} after aresetn"


def _fault(simulator: Simulator, rng: np.random.Generator) -> str:
    kind = FaultKind(int(rng.integers(len(FaultKind) - 1)))
    ports = simulator.geometry.ports
    writes = kind is FaultKind.WRITE_RESPONSE
    response = int(rng.choice([SLVERR, DECERR]))
    value = int(rng.integers(1, 5)) if kind is FaultKind.EARLY_LAST else response
    port = ports if writes else int(rng.integers(ports + 1))
    simulator.clear_statistics()
    simulator.add_fault(Fault(kind, port=port, value=value, skip=int(rng.integers(3))))
    _push_some(simulator, rng, 2)
    _settle(simulator)
    allowed = {
        FaultKind.READ_RESPONSE: regs.ERROR_READ_RESPONSE.mask,
        FaultKind.EARLY_LAST: regs.ERROR_UNDERRUN.mask,
        FaultKind.MISSING_LAST: regs.ERROR_OVERRUN.mask,
        FaultKind.WRITE_RESPONSE: regs.ERROR_WRITE_RESPONSE.mask,
    }[kind]
    # A burst of one beat cannot end too early.
    sure = kind is not FaultKind.EARLY_LAST and simulator.statistics().faults > 0
    return _compare_error(simulator, allowed, f"{kind.name} on port {port}", sure)


def _silence(simulator: Simulator, rng: np.random.Generator) -> str:
    ports = simulator.geometry.ports
    channel = Channel(1 << int(rng.integers(5)))
    writes = channel in (Channel.AW, Channel.W, Channel.B)
    port = ports if writes else int(rng.integers(ports + 1))
    simulator.add_fault(
        Fault(FaultKind.SILENCE, port=port, value=channel, skip=int(rng.integers(2)))
    )
    _push_some(simulator, rng, 2)
    _settle(simulator)
    # What falls silent after the last burst hurts nobody.
    what = f"silence of {channel.name} {port}"
    return _compare_error(simulator, regs.ERROR_WATCHDOG.mask, what, sure=False)


def _settle(simulator: Simulator) -> None:
    """Runs until there is an error or all is complete; slow memory may need long for either."""
    for _ in range(SETTLE_STEPS):
        simulator.step(SETTLE_CYCLES)
        is_idle = simulator.read(regs.COMPLETED) == simulator.read(regs.SUBMITTED)
        if is_idle or simulator.read(regs.ERROR):
            return


def _compare_error(simulator: Simulator, allowed: int, what: str, sure: bool) -> str:
    """Compares ERROR with what is allowed; unless ``sure``, nothing may have happened either."""
    error = simulator.read(regs.ERROR)
    if not sure and simulator.read(regs.COMPLETED) == simulator.read(regs.SUBMITTED):
        return "" if not error & ~allowed else f"{what}: ERROR is {error:#x}"
    return "" if error == allowed else f"{what}: ERROR is {error:#x}, expected {allowed:#x}"


def _bad_commands(simulator: Simulator, rng: np.random.Generator) -> str:
    before = simulator.read(regs.COMPLETED)
    _push_some(simulator, rng, 1)
    offset, value = (
        (regs.CMD_ROW_BEATS, 0),
        (regs.CMD_ROW_BEATS, simulator.geometry.nb_max + 1),
        (regs.CMD_TILES, 0),
        (regs.CMD_COLUMNS, simulator.geometry.columns + 1),
        (regs.CMD_X, 8),
        (regs.CMD_W[0] + 4, 1 << 31),
    )[int(rng.integers(6))]
    simulator.write(offset, value)
    simulator.write(regs.CMD_PUSH, 1)
    if not simulator.run_until(
        regs.COMPLETED, 0xFFFFFFFF, before + 2, SETTLE_STEPS * SETTLE_CYCLES
    ):
        return f"a command with {offset:#x} = {value:#x} is not counted as completed"
    error = simulator.read(regs.ERROR)
    simulator.write(regs.ERROR, error)
    if simulator.read(regs.ERROR):
        return "ERROR cannot be cleared"
    expected = regs.ERROR_BAD_LENGTH.mask
    return "" if error == expected else f"ERROR is {error:#x}, expected {expected:#x}"


def _overflow(simulator: Simulator, rng: np.random.Generator) -> str:
    _push_some(simulator, rng, 1)
    for _ in range(2 * simulator.geometry.queue_depth):
        simulator.write(regs.CMD_PUSH, 1)
    simulator.step(int(rng.integers(300)))
    return "" if not simulator.read(regs.ERROR) & STOPPING else "an overflow stops the queue"


def _read_everything(simulator: Simulator, rng: np.random.Generator) -> str:
    _push_some(simulator, rng, 2)
    for offset in rng.permutation(np.arange(0, 0x100, 4)):
        simulator.read(int(offset))
    simulator.write_with(regs.CMD_TAG, 0x12345678, strobes=0xF)
    simulator.write_with(regs.CMD_TAG, 0xFFFFFFFF, strobes=0b0110)
    tag = simulator.read(regs.CMD_TAG)
    return "" if tag == 0x12FFFF78 else f"CMD_TAG is {tag:#x} after a write of two bytes"


def _interrupt(simulator: Simulator, rng: np.random.Generator) -> str:
    simulator.write(regs.IRQ, regs.IRQ_COMPLETED.mask | regs.IRQ_ERROR.mask)
    simulator.write(regs.CONTROL, regs.CONTROL_IRQ_ENABLE.mask)
    _push_some(simulator, rng, 1)
    if rng.random() < 0.5:
        simulator.write(regs.CMD_TILES, 0)
        simulator.write(regs.CMD_PUSH, 1)
    simulator.wait(SETTLE_STEPS * SETTLE_CYCLES)
    risen = simulator.interrupt
    simulator.step(SETTLE_CYCLES)
    if not (risen and simulator.interrupt):
        return "the interrupt line did not rise, or fell by itself"
    reasons = simulator.read(regs.IRQ)
    simulator.write(regs.IRQ, reasons)
    if not reasons or simulator.read(regs.IRQ) or simulator.interrupt:
        return f"IRQ was {reasons:#x} and cannot be cleared"
    simulator.write(regs.CONTROL, 0)
    return ""


MISHAPS: tuple[Mishap, ...] = (
    _reset_at_any_moment,
    _hard_reset,
    _fault,
    _silence,
    _bad_commands,
    _overflow,
    _read_everything,
    _interrupt,
)
