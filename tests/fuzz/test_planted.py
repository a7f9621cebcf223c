"""The harness is alive: it finds bugs that are put in on purpose."""

from __future__ import annotations

import pytest

from tests.fuzz.client import Servers
from tests.fuzz.kinds import KINDS

# The first server may have to compile kernels, on a machine that is busy.
pytestmark = pytest.mark.timeout(1200)


def test_the_same_seed_gives_the_same_files() -> None:
    for kind in KINDS.values():
        assert kind.make(7) == kind.make(7)
        assert len({repr(kind.make(seed)) for seed in range(20)}) > 15


def test_a_buffer_that_is_too_small_is_found(servers: Servers) -> None:
    assert servers.run("weights", range(8), "overflow").has_failed_of("SIGSEGV")
    assert servers.run("read experts", range(8), "overflow").has_failed_of("SIGSEGV")
    assert servers.run("weights", range(8)).count("ran") > 2


def test_states_that_end_too_early_are_found(servers: Servers) -> None:
    """Of the recurrent layers that some of the models have."""
    assert servers.run("weights", range(48), "shifted", until="SIG").has_failed_of("SIGSEGV")


def test_shapes_that_nobody_checks_are_found(servers: Servers) -> None:
    """Emitters, repacking and stores look at sizes themselves: what is left are wrong numbers."""
    summary = servers.run("sizes", range(2000), "unchecked", until="RuntimeWarning")
    assert summary.has_failed_of("RuntimeWarning")


def test_a_reader_that_leaves_the_folder_is_found(servers: Servers) -> None:
    summary = servers.run("onnx", range(320, 480), "escape", until="opens /")
    assert summary.has_failed_of("opens /")


def test_a_reader_that_believes_sizes_is_found(servers: Servers) -> None:
    summary = servers.run("onnx", range(900, 960), "leak", until=" MB")
    assert summary.has_failed_of(" MB")


@pytest.mark.parametrize(
    ("plant", "detail"),
    [
        ("process", "starts "),
        ("socket", "socket."),
        ("code", "executes code of"),
        ("native", "has /"),
        ("print", "prints"),
        ("hang", "processor time"),
        ("hidden crash", "SIGABRT"),
    ],
)
def test_what_no_file_may_cause_is_found(servers: Servers, plant: str, detail: str) -> None:
    assert servers.run("configs", range(2), plant).has_failed_of(detail)
