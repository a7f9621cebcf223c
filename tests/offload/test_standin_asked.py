"""Which stand-in a user asks for, and how it is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import edgerun
from edgerun.backends import CompileOptions
from edgerun.backends.base import Shape
from edgerun.errors import InputError, UnsupportedError
from edgerun.model.bundle import open_bundle
from edgerun.offload.standin import StandinBackend
from edgerun.offload.standin.device import StandinDevice
from edgerun.offload.standin.spec import StandinSpec
from tests.support.bundles import bundle_of

HIGH = 1500  # number of a file, more than ``select`` takes
SOME = "memory=40K,link=100M"  # room for a few of OLMoE's small experts


@pytest.mark.parametrize(
    "text", ["x", "memory", "memory=", "memory=4X", "link=1ms", "memory=1,memory=2"]
)
def test_a_device_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not understood; expected memory, link and latency"):
        StandinSpec.read(text)
    with pytest.raises(InputError, match="without memory or link"):
        StandinSpec.read("memory=0")


def test_answers_come_however_many_files_are_open() -> None:
    resource = pytest.importorskip("resource")
    fcntl = pytest.importorskip("fcntl")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= HIGH:
        pytest.skip("so many files cannot be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    device = StandinDevice.__new__(StandinDevice)
    device._buffer = b""
    try:
        with subprocess.Popen(["echo", '{"number": 7}'], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            low = process.stdout
            with os.fdopen(fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, HIGH), "rb") as high:
                process.stdout = high
                device._process = process
                assert device.answer(10.0).number == 7
            low.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_devices() -> None:
    assert StandinSpec.read("") == StandinSpec()
    device = StandinSpec.read("memory=1.5G, link=100M, latency=2ms")
    assert device == StandinSpec(3 << 29, 100 << 20, 2e-3)
    backend = StandinBackend()
    assert "no device was named: --device standin:memory=" in backend.probe().reason
    with pytest.raises(UnsupportedError, match="no device was named"):
        backend.compile(
            open_bundle(bundle_of("olmoe", weights="int4")).graph, Shape.of(1), CompileOptions(())
        )


def test_it_is_announced_and_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the entry point of the project's own file, whatever is installed."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (value,) = re.findall(r'^standin = "(.*?)"', text, re.MULTILINE)
    point = EntryPoint("standin", value, "edgerun.backends")
    monkeypatch.setattr("edgerun.backends.registry._added_backends", lambda: [point])
    folder = bundle_of("olmoe", weights="int4")
    replies = []
    for backend, asked in (("cpu", {}), ("standin", {"device": SOME, "share": "always"})):
        with edgerun.load(folder, backend=backend, threads=1, **asked) as llm:  # type: ignore[arg-type]
            replies.append(llm.generate("Once upon", max_tokens=12, seed=0).text)
            if asked:
                (report,) = llm.reports()
                assert "stand-in" in report.title
    assert replies[0] == replies[1]


def test_its_process_starts_without_a_compiler() -> None:
    """Importing Numba takes longer than all the rest."""
    script = "import edgerun.offload.standin.process, sys; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
