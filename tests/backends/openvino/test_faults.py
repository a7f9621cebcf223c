"""Devices that fail: the CPU goes on in the same call with the same tokens, and says so once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgerun
from edgerun.backends.openvino import session as sessions
from edgerun.backends.openvino.devices import find_device
from edgerun.backends.openvino.session import Session, reason
from edgerun.errors import BackendError
from edgerun.state import Batch
from tests.backends.openvino.conftest import Fault, Placed, placed
from tests.backends.openvino.test_handover import Silent
from tests.backends.openvino.test_places import ids_of
from tests.support.bundles import bundle_of

pytest.importorskip("openvino")

KINDS = ("lost", "memory", "hang", "nan")
IDS = np.resize(ids_of("llama"), 100).tolist()
TRIALS = 200


def greedy(model: Placed, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens after a prompt, which comes in two calls."""
    store = model.store()
    slot, half = store.open(), len(prompt) // 2
    model.run(store, Batch.of(prompt[:half], 0, slot, logits="none"))
    logits = model.run(store, Batch.of(prompt[half:], half, slot))
    ids = [int(logits[-1].argmax())]
    while len(ids) < count:
        logits = model.run(store, Batch.of(ids[-1:], len(prompt) + len(ids) - 1, slot))
        ids.append(int(logits[-1].argmax()))
    return ids


def test_tokens_survive_a_device_that_fails_at_any_call(
    fault: Fault, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place = bundle_of("llama", weights="fp32"), "prefill=openvino:CPU,decode=openvino:CPU"
    with placed(folder, "prefill=cpu") as cpu, placed(folder, place) as model:
        session = model.session()
        monkeypatch.setattr(session, "release", lambda: None)  # the next trial needs the networks
        expected = {length: greedy(cpu, IDS[:length], 12) for length in range(40, 100, 10)}
        calls = 0
        for length, tokens in expected.items():  # all networks there are, and how often they run
            before = model.calls()
            assert greedy(model, IDS[:length], 12) == tokens
            calls = max(calls, model.calls() - before)
        assert calls >= 13
        failed = 0
        each_call = [(kind, at) for at in range(calls) for kind in KINDS]
        assert len(each_call) <= TRIALS
        for trial in range(TRIALS):
            kind, at = each_call[trial % len(each_call)]
            length = [*expected][trial % len(expected)]
            session.failure = ""
            caplog.clear()
            fault.set(kind, at)
            assert greedy(model, IDS[:length], 12) == expected[length], (kind, at, length)
            said = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(said) == bool(session.failure)
            assert all("openvino:CPU failed, so the CPU goes on" in r.message for r in said)
            assert bool(session.failure) == (fault.countdown < 0)
            failed += bool(session.failure)
        assert failed >= 0.9 * TRIALS


def test_a_prompt_goes_on_where_the_device_was_lost(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """Through all that lies above: replies of several readers, one of which loses the device."""
    folder = bundle_of("qwen3", weights="int4", activations="fp32")
    prompts = [ids_of("qwen3", length) for length in (40, 60, 90)]
    results = []
    for place in ("prefill=cpu", "prefill=openvino:CPU"):
        with edgerun.load(folder, place=place, threads=1) as llm:
            if "openvino" in place:
                fault.set("lost", 1)
            streams = [
                llm.stream(prompt, temperature=0, max_tokens=20, ignore_eos=True)
                for prompt in prompts
            ]
            for stream in streams:
                list(stream)
            results.append([stream.completion.ids for stream in streams])
            reports = llm.reports()
    assert results[1] == results[0]
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["openvino:CPU failed, so the CPU goes on: ZE_RESULT_ERROR_DEVICE_LOST"]
    assert reports[0].notes == ["the device is not used any more: ZE_RESULT_ERROR_DEVICE_LOST"]
    assert [row["calls"] for row in reports[0].rows] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_that_failed_keeps_no_memory(fault: Fault, kind: str) -> None:
    """Unless it does not answer: then it may still read and write there."""
    folder, place = bundle_of("llama", weights="fp32"), "prefill=openvino:CPU,decode=openvino:CPU"
    with placed(folder, place) as model:
        expected = greedy(model, IDS[:90], 4)
        mirror = weakref.ref(model.session().mirror)
        assert len(fault.networks) > 3 and all(network() for network in fault.networks)
        fault.set(kind, 2)
        assert greedy(model, IDS[:90], 4) == expected
        assert model.session().failure
        held = [network for network in fault.networks if network() is not None]
        assert len(held) == (len(fault.networks) if kind == "hang" else 0)
        assert (mirror() is None) == (kind != "hang")
        assert model.session().mirror.nbytes == 0 or kind == "hang"


def test_networks_of_a_device_that_does_not_answer_outlive_the_model(fault: Fault) -> None:
    """OpenVINO would wait for the device, for ever, to destroy them."""
    with placed(bundle_of("llama", weights="fp32"), "prefill=openvino:CPU") as model:
        greedy(model, IDS[:40], 1)
        requests = list(model.session()._requests)
        assert requests and not fault.immortal
        fault.set("hang", 0)
        greedy(model, IDS[:40], 1)
        assert model.session().failure and set(fault.immortal) == set(requests)


def test_a_model_can_be_closed_when_ctrl_c_has_ended_a_call_that_hangs(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SECONDS", 0.01)
    with placed(bundle_of("llama", weights="fp32"), "prefill=openvino:CPU") as model:
        greedy(model, IDS[:40], 1)
        requests = list(model.session()._requests)
        monkeypatch.setattr(requests[0], "_request", Silent())
        requests[0].start([])
        requests[0].cancel()
        assert not fault.immortal
    assert set(fault.immortal) == set(requests)


def test_a_device_that_hangs_when_it_is_compared_ends_the_load(fault: Fault) -> None:
    fault.set("hang", 0)
    with pytest.raises(BackendError, match=r"openvino:NPUW-CPU cannot run .* did not answer"):
        edgerun.load(
            bundle_of("llama", weights="fp32"), place="prefill=openvino:NPUW-CPU", threads=1
        )
    assert len(fault.networks) == len(fault.immortal) == 1  # no other options are tried


def test_a_required_device_that_fails_is_an_error(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    folder = bundle_of("llama", weights="fp32")
    with edgerun.load(
        folder, place="prefill=openvino:CPU", require="openvino:CPU", threads=1
    ) as llm:
        fault.set("lost", 0)
        for _ in range(2):
            with pytest.raises(BackendError, match="openvino:CPU failed and is required.*LOST"):
                llm.generate(IDS[:40], max_tokens=4)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_nothing_is_written_of_a_call_that_failed(fault: Fault) -> None:
    with placed(
        bundle_of("llama", weights="fp32"), "prefill=openvino:CPU", required="openvino:CPU"
    ) as model:
        store = model.store()
        slot = store.open()
        store.reserve(slot, 64)
        before = store.version(slot)
        fault.set("nan", 0)
        with pytest.raises(BackendError, match="NaN or infinity"):
            model.programs.run(Batch.of(IDS[:64], 0, slot, logits="none"), store)
        assert store.version(slot) == before
        assert not any(
            part.any() for s in store.states for part in store.read_block(s.name, slot, 0, 64)
        )


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    """OpenVINO whose compiler fails; yields the options of each time."""
    asked: list[dict[str, object]] = []

    class Core:
        def get_property(self, plugin: str, name: str) -> str:
            return "1.0"

        def compile_model(self, model: object, plugin: str, config: dict[str, object]) -> None:
            asked.append({"plugin": plugin, **config})
            raise RuntimeError(
                "Exception from src/inference/src/cpp/core.cpp:121:\n"
                "Exception from src/inference/src/dev/plugin.cpp:60:\n"
                "cannot load libopenvino_intel_npu_compiler_loader.so\n\n"
            )

    monkeypatch.setattr(sessions, "openvino_core", Core)
    yield asked


def test_a_compiler_that_fails_is_quoted_without_its_sources(core: list[dict[str, object]]) -> None:
    folder = bundle_of("llama", weights="fp32")
    with pytest.raises(BackendError) as error:
        edgerun.load(folder, place="prefill=openvino:NPUW-CPU", threads=1)
    text = str(error.value)
    assert text.startswith("openvino:NPUW-CPU cannot run this model: cannot load libopenvino_intel")
    assert "core.cpp" not in text and "\n" not in text
    assert text.count("cannot load") == 1  # the same of every configuration
    assert [each["plugin"] for each in core] == ["NPU"] * 3
    assert all(each["NPUW_DEVICES"] == "CPU" for each in core)


def test_reasons_are_one_line() -> None:
    assert reason(RuntimeError("")) == "RuntimeError"
    assert reason(MemoryError()) == "MemoryError"
    assert reason(RuntimeError("Check 'x == y' failed at src/a.cpp:5:\nbad\nshape")) == "bad shape"


def test_a_session_tries_first_what_was_right() -> None:
    session = Session(find_device("NPUW-CPU"), 1)
    first, second, third = session.configurations()
    session.accept(second)
    assert session.configurations() == [second, first, third]


def test_openvino_stays_when_models_go() -> None:
    """Unloaded, it left signal handlers without a stack: Ctrl-C in a later test ended the process.

    That took these tests' refusals and then ``tests/backends/test_onnxruntime.py``.
    """
    first = Session(find_device("CPU"), 1).core
    assert Session(find_device("NPUW-CPU"), 1).core is first


FORK = """
import json, os, signal, sys
import edgerun
from edgerun.backends.openvino import executable
from pathlib import Path
from types import SimpleNamespace
executable.settings = lambda: SimpleNamespace(cache_dir=Path(sys.argv[2]))
llm = edgerun.load(sys.argv[1], place="prefill=openvino:CPU", threads=1, context=64)
ids = [llm.generate([*range(5, 45)], max_tokens=4, temperature=0).ids]
child = os.fork()
if child == 0:
    signal.alarm(20)
ids += [llm.generate([*range(50, 90)], max_tokens=4, temperature=0).ids]
def load_again():
    try:
        edgerun.load(sys.argv[1], place="prefill=openvino:CPU", threads=1, context=32).close()
    except edgerun.EdgerunError as error:
        return str(error)
def tell():
    (report,) = llm.reports()
    said = {"ids": ids, "calls": report.rows[0]["calls"], "notes": report.notes}
    said["again"] = load_again()
    print(json.dumps(said), flush=True)
if child == 0:
    tell()
    if sys.argv[3] == "close":
        llm.close()
    sys.exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
tell()
sys.exit(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("end", ["close", "exit"])
def test_a_forked_process_computes_on_the_cpu_and_ends(tmp_path: Path, end: str) -> None:
    """It has none of OpenVINO's threads: what they do not end cannot be destroyed."""
    folder = str(bundle_of("llama", weights="fp32"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, folder, str(tmp_path), end],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    child, parent = map(json.loads, done.stdout.splitlines())
    assert child["ids"] == parent["ids"]
    assert (child["calls"], parent["calls"]) == (1, 2)
    assert "a forked process has none of OpenVINO's threads" in child["notes"][0]
    assert "OpenVINO was in use before this process was forked" in child["again"]
    assert parent["again"] is None
