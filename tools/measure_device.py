"""Measures an NPU or GPU of Intel's on the machine that has it, for those who have none.

    python -m tools.measure_device NPU [--out FILE] [--model BUNDLE]

In a checkout with ``pip install -e '.[npu,dev]'``. It runs the tests that need the device, measures
the processor and the device as ``edgerun doctor --calibrate`` does, and runs a model with prompts
(on a GPU, replies too) there. What comes out is one file, to be committed as it is: plans for that
machine can be made anywhere with ``--device virtual:FILE``. Nothing is written if a test fails.
``CPU`` and ``NPUW-CPU`` try the procedure where there is no device, and the file says so.
"""

from __future__ import annotations

import argparse
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np

import edgerun
from edgerun.backends.openvino.devices import Device, find_device
from edgerun.backends.openvino.session import Session
from edgerun.backends.virtual import Laptop
from edgerun.errors import EdgerunError, InputError, UnsupportedError
from edgerun.files.private import write_atomically
from edgerun.kernels.host.cores import cores, worker_threads
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.machine.busy import BusyMeter
from edgerun.machine.devices import DeviceProfile
from edgerun.machine.profile import MachineProfile, processor_name, read_profile
from edgerun.model.bundle import open_bundle
from edgerun.plan.calibration.device_process import measure_apart
from edgerun.plan.calibration.processor import calibrate

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tools" / "laptops" / "measured"
TESTS = ROOT / "tests" / "backends" / "openvino" / "test_hardware.py"
# Which tests, by device, and where its parts of the work go.
SELECTIONS = {
    "NPU": ("-m", "npu"),
    "GPU": ("-m", "igpu"),
    "CPU": ("-k", "CPU and not NPUW"),
    "NPUW-CPU": ("-k", "NPUW"),
}
STANDS_IN = {
    "CPU": "the processor in place of a device: says nothing of an NPU or a GPU",
    "NPUW-CPU": "the NPU's partitioner on the processor: says nothing of an NPU",
}
DECODES = ("GPU", "CPU")
HERE = "prefill=cpu"
PROMPTS, RUNS = (32, 128, 384), 5
REPLIES, REPLY_TOKENS = 20, 64


def main(arguments: list[str] | None = None) -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=SELECTIONS)
    parser.add_argument("--out", type=Path, help=f"default: a new file in {FOLDER.name}/")
    parser.add_argument("--model", type=Path, help="a bundle; default: the model of edgerun")
    given = parser.parse_args(arguments)
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    path = given.out or FOLDER / f"{_slug(given.device, processor_name(), today)}.json"
    try:
        device = find_device(given.device)
        support = device.probe()
        if not support:
            raise UnsupportedError(f"{device.title} cannot be measured here: {support.reason}")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = measure(device, given.model, today)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        Laptop.read(path)  # or nobody could plan with it
    except EdgerunError as error:
        _say(f"measure_device: {error}")
        return 2 if isinstance(error, InputError) else 1
    except OSError as error:
        _say(f"measure_device: {path} cannot be written: {error.strerror}; name another with --out")
        return 1
    print(path)
    return 0


def measure(device: Device, model: Path | None, today: str) -> dict[str, Any]:
    """Does all of it; returns what is to be written.

    Raises:
        EdgerunError: a test failed, or it cannot be measured.
    """
    open_bundle(resolve(model))  # what is wrong with it is better said now
    session = Session(device, worker_threads(None))
    session.check_device()
    _say(f"tests that need {device.title}")
    tests = run_tests(device.name)
    with BusyMeter() as meter:
        host, profile = profiles(device, session.threads)
        runs = [run_model(device, model, place) for place in places(device)]
    notes = [STANDS_IN.get(device.name, ""), meter.describe() if meter.busy else ""]
    laptop = described(device, host, profile, today, notes)
    figures: dict[str, Any] = msgspec.to_builtins(laptop)
    return figures | {
        "stands_in": notes[0],
        "disturbed": notes[1],
        "machine": machine(session),
        "tests": tests,
        "runs": runs,
    }


def places(device: Device) -> list[str]:
    """Where parts of the work go in turn, the processor alone first."""
    prefill, decode = f"prefill={device.title}", f"decode={device.title}"
    more = [decode, f"{prefill},{decode}"] if device.name in DECODES else []
    return [HERE, prefill, *more]


def run_tests(name: str) -> dict[str, int]:
    """Runs the tests of a device; returns how many passed.

    Raises:
        EdgerunError: one failed, or none ran.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=--import-mode=importlib"]
        options = [f"--junitxml={results}", *SELECTIONS[name], str(TESTS)]
        done = subprocess.run(
            [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not results.is_file():
            raise EdgerunError(f"the tests could not be run: {done.stderr.strip() or done.stdout}")
        cases = ElementTree.parse(results).getroot().iter("testcase")
        outcomes = {str(case.get("name")): {child.tag for child in case} for case in cases}
    failed = [test for test, tags in outcomes.items() if tags & {"failure", "error"}]
    passed = sum(1 for tags in outcomes.values() if not tags & {"failure", "error", "skipped"})
    if failed or not passed:
        verdict = f"{len(failed)} tests failed: {', '.join(failed)}" if failed else "no tests ran"
        command = ["python", "-m", "pytest", "-o", "addopts=", *SELECTIONS[name], str(TESTS)]
        raise EdgerunError(
            f"nothing was written, since {verdict}; to look at them: {shlex.join(command)}"
        )
    return {"passed": passed}


def profiles(device: Device, threads: int) -> tuple[MachineProfile, DeviceProfile]:
    """What processor and device can do; what the doctor measured already is taken from it.

    Raises:
        EdgerunError: the machine is busy, or the device cannot be measured.
    """
    host = read_profile()
    if not host.complete:
        host = calibrate(threads, lambda text: _say(f"measuring {text}"))
    profile = host.device(device.title, device.version)
    if profile is None:
        _say(f"measuring {device.title}")
        measured = measure_apart("openvino", device.name, threads)
        profile = replace(measured, version=device.version)
    return replace(host, devices={}), profile


def described(
    device: Device, host: MachineProfile, profile: DeviceProfile, today: str, notes: list[str]
) -> Laptop:
    """The machine as plans read it, each figure with its source."""
    title = "; ".join(filter(None, [f"{processor_name()} with {device.title}, measured", *notes]))
    laptop = Laptop(title, today, host, profile)
    by_part = {
        "host": f"measured {host.measured}, edgerun {edgerun.__version__}",
        "device": f"measured {profile.measured}, {profile.version}",
    }
    sources = {name: by_part[name.partition(".")[0]] for name in sorted(laptop.figures())}
    return replace(laptop, sources=sources)


def machine(session: Session) -> dict[str, Any]:
    """What was measured, for people."""
    import psutil

    return {
        "processor": processor_name(),
        "cores": cores().physical,
        "threads": session.threads,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "edgerun": edgerun.__version__,
        "driver": session.device.version,
        "openvino": session.identity(),
    }


def run_model(device: Device, model: Path | None, place: str) -> dict[str, Any]:
    """Speeds at a place, and how many greedy replies are those of the processor alone.

    Raises:
        BackendError: the device failed; nothing goes on in its place.
    """
    _say(f"a model with {place}")
    with edgerun.load(model, place=place, require=None if place == HERE else device.title) as llm:
        row: dict[str, Any] = {"place": place, **speeds(llm)}
        replies = greedy(llm)
        row["devices"] = [report.title for report in llm.reports()]
    if place != HERE:
        with edgerun.load(model, place=HERE) as llm:
            same = sum(ours == theirs for ours, theirs in zip(replies, greedy(llm), strict=True))
        row["same_replies"] = f"{same} of {REPLIES}, of {REPLY_TOKENS} greedy tokens each"
    return row


def speeds(llm: LLM) -> Mapping[str, Any]:
    """Prompt tokens a second by length, and tokens of a reply a second: the best of some runs."""
    lengths = [length for length in PROMPTS if length + REPLY_TOKENS <= llm.model.context]
    prefill, decode = {}, 0.0
    for length in lengths:
        stats = [
            llm.generate(prompt, temperature=0, max_tokens=REPLY_TOKENS, ignore_eos=True).stats
            for prompt in _prompts(llm, RUNS + 1, length)
        ][1:]  # the first compiles
        prefill[str(length)] = round(max(each.prefill_tokens_per_s for each in stats), 1)
        decode = max(decode, *(each.decode_tokens_per_s for each in stats))
    return {"prefill_tokens_per_s": prefill, "decode_tokens_per_s": round(decode, 1)}


def greedy(llm: LLM) -> list[list[int]]:
    """The likeliest tokens after some prompts."""
    return [
        llm.generate(prompt, temperature=0, max_tokens=REPLY_TOKENS, ignore_eos=True).ids
        for prompt in _prompts(llm, REPLIES, PROMPTS[0])
    ]


def _prompts(llm: LLM, count: int, length: int) -> list[list[int]]:
    """Random ids, so that no prompt finds what another has computed."""
    rng = np.random.default_rng(length)
    ids: list[list[int]] = rng.integers(0, llm.model.vocab_size, (count, length)).tolist()
    return ids


def _slug(*parts: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
