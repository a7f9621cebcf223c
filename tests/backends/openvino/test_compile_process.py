"""Compilers in processes of their own: slow ones, and such that do not come back."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgerun
from edgerun.backends.base import CompileOptions, Phase, Shape
from edgerun.backends.openvino import OpenvinoBackend, compile_process, devices, executable
from edgerun.backends.openvino.compile_process import Compilation
from edgerun.backends.openvino.session import Session
from edgerun.backends.registry import make_backend
from edgerun.errors import BackendError
from edgerun.model.bundle import open_bundle
from edgerun.plan.programs import Deferred
from edgerun.plan.routes import prompt_graph
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tests.backends.openvino.test_places import ids_of
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

pytest.importorskip("openvino")

PLACE = "prefill=openvino:CPU"
KILLED = "import os, sys; sys.stdin.read(); os.kill(os.getpid(), 9)"
ABORTED = "import os, sys; sys.stdin.read(); os.abort()"
SILENT = "import sys; sys.exit(3)"
NOISY = """
import os
from edgerun.backends.openvino.session import Session
compile_ = Session.compile
def noisy(*given):
    os.write(1, b"x" * 100_000)  # more than fits into a pipe
    return compile_(*given)
Session.compile = noisy
main()
"""


@pytest.fixture(autouse=True)
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Compilation]]:
    """Lets the CPU's networks be compiled as an NPU's are; yields the processes."""
    cpu = replace(devices.DEVICES["CPU"], compiles_in_child=True)
    monkeypatch.setattr(devices, "DEVICES", {**devices.DEVICES, "CPU": cpu})

    def compile_here(*given: Any) -> None:
        raise AssertionError("this process compiles")

    monkeypatch.setattr(Session, "compile", compile_here)
    started: list[Compilation] = []
    init = Compilation.__init__

    def noting(self: Compilation, job: bytes) -> None:
        init(self, job)
        started.append(self)

    monkeypatch.setattr(Compilation, "__init__", noting)
    yield started
    assert all(each._process.poll() is not None for each in started)  # none is left behind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With calls of more than 128 rows, for which there are two networks."""
    bundle = AlteredBundle(bundle_of("llama", weights="fp32"), tmp_path / "llama")
    bundle.manifest["model"]["context_length"] = 256
    return bundle.save()


def ids(llm: edgerun.LLM, length: int = 40) -> list[int]:
    """Continues a prompt; one of negative length is turned round, so that no prefix is shared."""
    prompt = ids_of("llama", abs(length))[:: 1 if length > 0 else -1]
    return llm.generate(prompt, temperature=0, max_tokens=12, ignore_eos=True).ids


@pytest.fixture
def expected(folder: Path) -> dict[int, list[int]]:
    with edgerun.load(folder, threads=1) as llm:
        return {length: ids(llm, length) for length in (40, 150, -40)}


def calls(llm: edgerun.LLM) -> int:
    return sum(row["calls"] for report in llm.reports() for row in report.rows)


def waits_for(path: Path) -> str:
    """A compiler that begins when there is a file."""
    waiting = f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)"
    return f"{waiting}\n{compile_process.CHILD}"


def interrupted(self: Compilation, seconds: float | None) -> bool:
    raise KeyboardInterrupt


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_network_is_made_by_another_process(
    folder: Path, expected: dict[int, list[int]], compilations: list[Compilation]
) -> None:
    for _ in range(2):
        with edgerun.load(folder, place=PLACE, threads=1) as llm:
            assert all(ids(llm, length) == expected[length] for length in (150, -40))
            assert calls(llm) == 2
    assert len(compilations) == 2  # 64 rows, then 256, and nothing the second time


def test_what_a_compiler_prints_is_not_its_answer(
    folder: Path, expected: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executable, "PATIENCE_S", 20.0)
    child = compile_process.CHILD.removesuffix("main()") + NOISY
    monkeypatch.setattr(compile_process, "CHILD", child)
    with edgerun.load(folder, place=PLACE, threads=1) as llm:
        assert ids(llm) == expected[40]
        assert calls(llm) == 1


def test_another_process_makes_networks_of_prompts_and_replies(
    folder: Path, expected: dict[int, list[int]]
) -> None:
    """Of prompts the last layer computes the wanted rows alone: nodes that no bundle has."""
    with edgerun.load(folder, place=f"{PLACE},decode=openvino:CPU", threads=1) as llm:
        assert ids(llm) == expected[40]
        assert calls(llm) == 12  # the prompt, then a reply's tokens but the last


def test_the_cpu_computes_while_a_compiler_takes_long(
    folder: Path,
    expected: dict[int, list[int]],
    compilations: list[Compilation],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(executable, "PATIENCE_S", 0.05)
    monkeypatch.setattr(compile_process, "CHILD", waits_for(tmp_path / "go"))
    with edgerun.load(folder, place=PLACE, threads=1) as llm:
        assert ids(llm) == expected[40]
        assert calls(llm) == 0
        assert warnings(caplog) == [
            "openvino:CPU still compiles after 0 s, so the CPU computes meanwhile"
        ]
        (tmp_path / "go").touch()
        assert compilations[0].wait(60)
        assert ids(llm, -40) == expected[-40]
        assert calls(llm) == 1
    assert len(warnings(caplog)) == 1


def test_ctrl_c_ends_the_wait_and_not_the_compiler(
    folder: Path,
    expected: dict[int, list[int]],
    compilations: list[Compilation],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with edgerun.load(folder, place=PLACE, threads=1) as llm:
        monkeypatch.setattr(compile_process, "CHILD", waits_for(tmp_path / "go"))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Compilation, "wait", interrupted)
            ids(llm, 150)
        assert ids(llm, 150) == expected[150]
        assert warnings(caplog) == ["openvino:CPU still compiles, so the CPU computes meanwhile"]
        (tmp_path / "go").touch()
        assert compilations[-1].wait(60)
        assert ids(llm, -150)
        assert (len(compilations), calls(llm)) == (2, 1)


def test_ctrl_c_in_a_load_ends_its_compiler(
    folder: Path, compilations: list[Compilation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_process, "CHILD", waits_for(tmp_path / "never"))
    monkeypatch.setattr(Compilation, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        edgerun.load(folder, place=PLACE, threads=1)
    assert interrupt.tb and compilations[0]._process.poll() == -9


def test_a_device_that_nobody_asked_for_keeps_nobody_waiting(
    folder: Path,
    compilations: list[Compilation],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(compile_process, "CHILD", waits_for(tmp_path / "go"))
    bundle = open_bundle(folder)
    states = states_of(bundle.graph, bundle.config, "fp32")
    device, cpu = make_backend("openvino", "CPU", {"threads": 1}), make_backend("cpu")
    options = CompileOptions(
        states,
        fallback=lambda segment, shape: cpu.compile(segment, shape, CompileOptions(states)),
        digest=bundle.digest,
        is_asked=False,
    )
    program = device.compile(prompt_graph(bundle.graph), Shape(Phase.PREFILL, 64), options)
    store, prompt = SequenceStore(states, 64), Batch.of(ids_of("llama", 40), 0, 0, logits="none")
    store.reserve(store.open(), 40)
    program(prompt, store)  # or it would take a minute
    assert (len(compilations), device.report()) == (1, None)
    (tmp_path / "go").touch()
    assert compilations[0].wait(60)
    program(prompt, store)
    report = device.report()
    assert report is not None and [row["calls"] for row in report.rows] == [1]
    assert not warnings(caplog)
    program.close()
    device.close()
    cpu.close()


def test_who_requires_a_device_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executable, "PATIENCE_S", 0.0)
    with edgerun.load(folder, place=PLACE, require="openvino:CPU", threads=1) as llm:
        ids(llm)
        assert calls(llm) == 1
    assert not warnings(caplog)


def test_what_is_still_compiled_ends_with_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compilations: list[Compilation]
) -> None:
    monkeypatch.setattr(executable, "PATIENCE_S", 0.0)
    monkeypatch.setattr(compile_process, "CHILD", waits_for(tmp_path / "never"))
    with edgerun.load(folder, place=PLACE, threads=1):
        assert compilations[0]._process.poll() is None
    assert compilations[0]._process.poll() == -9


@pytest.mark.parametrize(
    ("code", "how"), [(KILLED, "signal 9"), (ABORTED, "signal 6"), (SILENT, "exit code 3")]
)
def test_a_compiler_that_ends_is_said(
    code: str, how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_process, "CHILD", code)
    with pytest.raises(BackendError, match=f"cannot run this model: its compiler ended with {how}"):
        edgerun.load(folder, place=PLACE, threads=1)


def test_the_cpu_goes_on_if_a_compiler_is_killed_later(
    folder: Path,
    expected: dict[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with edgerun.load(folder, place=PLACE, threads=1) as llm:
        monkeypatch.setattr(compile_process, "CHILD", KILLED)
        assert ids(llm, 150) == expected[150]  # which needs another network
        assert calls(llm) == 0
    (line,) = warnings(caplog)
    assert line.startswith("openvino:CPU failed, so the CPU goes on: ")
    assert "its compiler ended with signal 9" in line


def test_the_cpu_goes_on_if_a_compiler_cannot_be_started(
    folder: Path,
    expected: dict[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with edgerun.load(folder, place=PLACE, threads=1) as llm:
        monkeypatch.setattr(compile_process.subprocess, "Popen", refuse)
        assert ids(llm, 150) == expected[150]  # which needs another network
    (line,) = warnings(caplog)
    assert "its compiler cannot be started: Cannot allocate memory" in line


def test_a_compiler_that_reads_no_job_leaves_no_open_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_process, "CHILD", SILENT)
    compilation = Compilation(bytes(1 << 20))  # more than fits into a pipe
    assert compilation.wait(60) and "exit code 3" in compilation.fault()
    compilation.close()
    assert compilation._process.stdin is not None and compilation._process.stdin.closed


@pytest.mark.parametrize("step", [(Deferred, "prepare", 2), (OpenvinoBackend, "preload", 1)])
def test_a_load_that_fails_leaves_no_compiler(
    step: tuple[type, str, int],
    folder: Path,
    compilations: list[Compilation],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    owner, name, count = step
    original, called = getattr(owner, name), []

    def fail(self: Any) -> Any:
        called.append(self)
        if len(called) == count:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(executable, "PATIENCE_S", 0.0)
    monkeypatch.setattr(compile_process, "CHILD", waits_for(tmp_path / "never"))
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(KeyboardInterrupt):
        edgerun.load(folder, place=PLACE, threads=1)
    assert compilations[0]._process.poll() == -9


def test_a_bundle_that_was_changed_meanwhile_is_not_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of = compile_process.job_of

    def other_digest(*given: Any, **others: Any) -> bytes:
        return job_of(*given, **{**others, "digest": "0" * 64})

    monkeypatch.setattr("edgerun.backends.openvino.maker.job_of", other_digest)
    with pytest.raises(BackendError, match="the bundle was changed since it was opened"):
        edgerun.load(folder, place=PLACE, threads=1)
