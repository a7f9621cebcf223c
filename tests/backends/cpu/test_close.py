"""What becomes of a back-end's threads when it is closed."""

from __future__ import annotations

import pytest

from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.weights import ExpertStore
from edgerun.kernels.run.program import ThreadTeam


def test_readers_of_experts_end_even_if_workers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ExpertStore] = []

    def interrupted(self: ThreadTeam) -> None:
        raise KeyboardInterrupt

    backend = CpuBackend()
    backend.configure({"threads": 1})
    experts = backend.experts
    with monkeypatch.context() as patch:
        patch.setattr(ExpertStore, "close", lambda self: closed.append(self))
        patch.setattr(ThreadTeam, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.close()
    assert closed == [experts]
    backend.close()
