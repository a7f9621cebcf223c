"""Fixtures that more than one folder of tests needs."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# Tests run beside each other on all cores, and their matrices are small: waking a second thread
# for a product and spinning beside it took five times as long as multiplying. It is read when NumPy
# is imported, which nothing has done yet, and by child processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Images of containers often forbid bytecode, and then a hundred child processes, and each run's
# collection, compile the same sources again: 30 s of processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# All the tests are a heap of a gigabyte. To look through it as often as through a small one took a
# third of the time of collecting them, and a tenth of that of running them.
gc.set_threshold(100_000, 20, 20)

# How fast a machine is, and what else it does, is nothing that a test may fail of.
settings.register_profile("edgerun", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgerun")


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: nobody need look whether they are garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _empty_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands read stdin whenever it is no terminal, and pytest's own refuses to be read."""
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


@pytest.fixture(autouse=True)
def memory_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast memory is read, said and not measured: beside other tests that is never stored,
    and takes seconds each time. What measures it has tests of its own (``tests/machine``)."""
    monkeypatch.setattr("edgerun.machine.profile.machine_bandwidth", lambda threads: 1e10)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real models, tokenizers and texts; kept beside the checkout because they are not ours."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}")
    return folder
