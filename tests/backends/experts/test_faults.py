"""What can go wrong while experts are read: counted, each in a process that may hang or die.

After each fault the model that met it says the same as before, or another that is loaded then.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.bundles import bundle_of
from tests.support.expert_faults.catalogue import FAULTS

LEAST = 200  # faults that are to be tried
SAMPLED = 23  # of so many faults one is tried every time
PATIENCE_S = 60.0  # for one fault, and for the start of a process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="faults of Linux")


def attempts(folder: Path, first: int, step: int) -> Iterator[dict[str, str]]:
    """What became of every ``step``-th fault; for a process that hangs another goes on."""
    number = first
    while number < len(FAULTS):
        command = [sys.executable, "-m", "tests.support.expert_faults", str(folder)]
        with subprocess.Popen(
            [*command, str(number), str(step)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            for line in lines(child):
                yield json.loads(line)
                number += step
            child.kill()
            _, said = child.communicate()
        if number < len(FAULTS):
            wrong = f"it ended or hung: {said.decode()[-2000:]}"
            yield {"name": FAULTS[number].name, "wrong": wrong}
            number += step


def lines(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """What a process prints, up to its end, or to a line that does not come."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    rest, end = b"", time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            content = child.stdout.read()
            if not content:
                return
            *whole, rest = (rest + content).split(b"\n")
            yield from whole
            end = time.monotonic() + PATIENCE_S


def check_faults(folder: Path, step: int) -> None:
    done = list(attempts(folder, 0, step))
    wrong = [f"{each['name']}: {each['wrong']}" for each in done if each["wrong"]]
    assert not wrong, f"{len(wrong)} of {len(done)}:\n" + "\n".join(wrong)
    assert [each["name"] for each in done] == [fault.name for fault in FAULTS[::step]]


def test_faults_are_many_and_no_two_the_same() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= LEAST


@pytest.mark.timeout(300)
def test_some_faults_end_a_reply_and_nothing_else() -> None:
    check_faults(bundle_of("olmoe", weights="int4"), SAMPLED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "weights"), [("olmoe", "int4"), ("mixtral", "int8"), ("gpt_oss", "int4")]
)
def test_no_fault_ends_more_than_a_reply(name: str, weights: str) -> None:
    check_faults(bundle_of(name, weights=weights), 1)


def test_a_process_that_hangs_or_dies_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No fault can be tried on a model that is not there: each is said, and none left out."""
    done = list(attempts(tmp_path, 0, len(FAULTS) // 2))
    assert len(done) == len(FAULTS[:: len(FAULTS) // 2])
    assert all(each["wrong"] for each in done)
    script = "import time; print('{}', flush=True); time.sleep(60)"
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.5)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert list(lines(child)) in ([b"{}"], [])
        child.kill()
