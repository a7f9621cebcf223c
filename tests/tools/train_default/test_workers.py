"""Processes that compute gradients. Needs torch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.tools.train_default.small_model import SMALL  # noqa: E402
from tools.train_default import workers as working  # noqa: E402
from tools.train_default.model import TernaryLM  # noqa: E402


def test_a_process_that_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "PATIENCE", 0.1)
    workers = working.Workers(TernaryLM(SMALL), 1, 1.0, 0.0)
    (process,) = workers.processes
    process.kill()
    process.join()
    ids = np.zeros((1, 4), np.int64)
    with pytest.raises(ChildProcessError, match="ended with code -9 .* from the last checkpoint"):
        workers.accumulate([(ids, ids)])
