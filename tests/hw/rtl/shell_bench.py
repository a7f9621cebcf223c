"""What a unit behind registers, queue and memory ports has to bear: bad commands, and faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import CommandError
from edgerun_hw.simulate.cases import push
from edgerun_hw.simulate.faults import SLVERR, Fault, FaultKind
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.support.placed import PlacedCommand

LIMIT = 2_000_000  # cycles


def complete(simulator: Simulator, number: int) -> bool:
    """Whether so many commands come to their end."""
    return simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, number, LIMIT)


def refuse(
    simulator: Simulator, good: PlacedCommand, changes: Mapping[str, tuple[int, int]]
) -> None:
    """Each change of a register makes a bad command, which is dropped between two good ones."""
    number = 0
    for name, (register, value) in changes.items():
        push(simulator, good.command, 1)
        simulator.write(register, value)
        simulator.write(regs.CMD_TAG, 2)
        simulator.write(regs.CMD_PUSH, 1)
        push(simulator, good.command, 3)
        number += 3
        assert complete(simulator, number), name
        assert not good.difference(), name
        assert simulator.read(regs.ERROR) == regs.ERROR_BAD_LENGTH.mask, name
        assert simulator.read(regs.ERROR_TAG) == 2, name
        simulator.write(regs.ERROR, regs.ERROR_BAD_LENGTH.mask)
        good.erase()


def recover(overlay: Tlmm, placed: PlacedCommand) -> None:
    """After a reset a command gives what it must."""
    placed.erase()
    overlay.reset()
    overlay.wait(overlay.submit(placed.command))
    assert not placed.difference()


def recover_from_faults(
    simulator: Simulator, overlay: Tlmm, placed: PlacedCommand, ports: Iterable[int]
) -> None:
    """Of reads of some ports, the first and the second, and of the results' write."""
    faults = [
        Fault(FaultKind.READ_RESPONSE, port=port, value=SLVERR, skip=skip)
        for port in ports
        for skip in (0, 1)
    ]
    data = simulator.geometry.ports
    faults.append(Fault(FaultKind.WRITE_RESPONSE, port=data, value=SLVERR))
    for fault in faults:
        simulator.add_fault(fault)
        with pytest.raises(CommandError):
            overlay.wait(overlay.submit(placed.command))
        simulator.clear_faults()
        recover(overlay, placed)
