"""Faults of memory under the RTL itself: the overlay stops, is reset, and tokens stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends import make_backend
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.port import Overlay
from edgerun_hw.simulate import Channel, Fault, FaultKind, Simulator
from tests.hw.backend.test_faults import TAKES_OVER, generate, with_device

pytestmark = [pytest.mark.fpga, pytest.mark.timeout(900)]

WATCHDOG = 1 << 14
DATA_PORT = PRESETS["tiny"].ports
KINDS = {
    "read response": (FaultKind.READ_RESPONSE, None, 2),
    "early end": (FaultKind.EARLY_LAST, None, 1),
    "missing end": (FaultKind.MISSING_LAST, None, 1),
    "write response": (FaultKind.WRITE_RESPONSE, DATA_PORT, 2),
    "silent reads": (FaultKind.SILENCE, None, int(Channel.R)),
    "silent writes": (FaultKind.SILENCE, DATA_PORT, int(Channel.B)),
}


@pytest.fixture(scope="module")
def expected() -> tuple[list[int], np.ndarray]:
    return generate(make_backend("cpu"))


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_survive_faults_of_the_memory(kind, lasting, expected, monkeypatch, caplog):
    rng = np.random.default_rng([list(KINDS).index(kind), lasting])
    simulators: list[Simulator] = []

    def make() -> Overlay:
        simulator = Simulator(PRESETS["tiny"], memory=None)
        simulators.append(simulator)
        return Tlmm(simulator, timeout_cycles=4 * WATCHDOG, watchdog_cycles=WATCHDOG)

    resets = []
    for _ in range(4):
        caplog.clear()
        what, port, value = KINDS[kind]
        fault = Fault(
            what,
            port=port,
            value=value,
            skip=int(rng.integers(20, 60)),
            count=1 << 30 if lasting else 1,
            cycles=1 << 40 if lasting else 4 * WATCHDOG,
        )

        def make_faulty(fault: Fault = fault) -> Overlay:
            overlay = make()
            simulators[-1].add_fault(fault)
            return overlay

        tokens, logits, backend = with_device(monkeypatch, make_faulty)
        assert tokens == expected[0], fault
        np.testing.assert_allclose(logits, expected[1], atol=2e-6)
        resets.append(backend._session.resets)
        taken_over = [TAKES_OVER in record.message for record in caplog.records]
        assert sum(taken_over) == len(taken_over) == int(bool(backend._session.failure))
        if lasting:
            assert backend._session.failure
    # A burst of one beat cannot end early, so one of the four may go unharmed.
    assert max(resets) == 1
    assert sum(resets) >= 3
