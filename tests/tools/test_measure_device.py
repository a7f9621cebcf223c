"""What somebody with an NPU runs: it refuses where there is none; plans can be made of its file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun.backends.openvino import executable
from edgerun.backends.registry import find_candidates
from edgerun.backends.virtual import Laptop
from edgerun.machine.devices import ATTENTION, ELEMENTS, Call, DeviceProfile
from edgerun.machine.profile import MachineProfile
from edgerun.model.bundle import open_bundle
from edgerun.plan.routes import plan_for
from edgerun.plan.tasks import Budget
from tests.support.bundles import bundle_of
from tests.support.machines import Pretend, pretender
from tools import measure_device

pytest.importorskip("openvino")

RATES = {1: 1e9, 128: 4e9}
HOST = MachineProfile(
    measured="2026-11-21",
    bandwidth={1: 1e9},
    rates={"int8_block/int4": RATES},
    fork_join_s={1: 1e-6},
    other_rates={ATTENTION: RATES, ELEMENTS: RATES},
)
DEVICE = DeviceProfile(
    calls={
        "float/int4": (Call(64, 64_000, 2e-3),),
        ELEMENTS: (Call(64, 64_000, 2e-3),),
        ATTENTION: (Call(64, 64_000, 2e-3, 256),),
    },
    call_s=1e-3,
    load_bytes_s=1e6,
    measured="2026-11-22",
)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretend:
    return pretender(monkeypatch, tmp_path)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The processor was measured yesterday; measuring a device takes no time."""
    monkeypatch.setattr(measure_device, "read_profile", lambda: HOST)
    monkeypatch.setattr(measure_device, "measure_apart", lambda *given: DEVICE)
    monkeypatch.setattr(measure_device, "RUNS", 1)
    monkeypatch.setattr(measure_device, "REPLIES", 2)
    monkeypatch.setattr(executable, "settings", lambda: SimpleNamespace(cache_dir=tmp_path))


def measured(tmp_path: Path, device: str, *more: str) -> tuple[int, Path]:
    out = tmp_path / "measured" / "laptop.json"
    model = str(bundle_of("llama", weights="int4"))
    return measure_device.main([device, "--model", model, "--out", str(out), *more]), out


@pytest.mark.parametrize("device", ["NPU", "GPU"])
def test_it_refuses_where_there_is_no_device(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], pretend: Pretend
) -> None:
    pretend()
    code, out = measured(tmp_path, device)
    shown = capsys.readouterr()
    assert (code, shown.out, out.parent.exists()) == (2, "", False)
    assert shown.err.startswith(f"measure_device: openvino:{device} cannot be measured here: ")
    assert shown.err.count("\n") == 1


@pytest.mark.usefixtures("calibrated")
def test_what_it_writes_can_be_planned_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_device, "run_tests", lambda name: {"passed": 4})
    code, out = measured(tmp_path, "NPUW-CPU")
    assert code == 0, capsys.readouterr().err
    assert capsys.readouterr().out == f"{out}\n"
    laptop = Laptop.read(out)
    assert laptop.figures() == set(laptop.sources)
    assert laptop.sources["device.calls"].startswith("measured 2026-11-22, OpenVINO 20")
    assert laptop.sources["host.rates"].startswith("measured 2026-11-21, edgerun ")
    assert (laptop.host.rates, laptop.device.calls) == (HOST.rates, DEVICE.calls)
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    plan = plan_for(
        graph, find_candidates("virtual", str(out), {"threads": 1}), Budget(), weighs_all=True
    )
    assert "simulated" in plan.verdict() and plan.splits


@pytest.mark.usefixtures("calibrated")
def test_a_stand_in_is_called_one_and_speeds_are_of_what_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_device, "run_tests", lambda name: {"passed": 4})
    content: dict[str, Any] = {}
    for device, places in (("CPU", 4), ("NPUW-CPU", 2)):
        code, out = measured(tmp_path, device)
        content = json.loads(out.read_text())
        assert code == 0 and len(content["runs"]) == places
        assert "says nothing of an NPU" in content["stands_in"] and "measured; " in content["title"]
    here, there = content["runs"]
    assert (here["place"], here["devices"]) == ("prefill=cpu", [])
    assert there["place"] == "prefill=openvino:NPUW-CPU"
    assert there["devices"][0].startswith("openvino:NPUW-CPU, ")
    assert list(there["prefill_tokens_per_s"]) == ["32"]  # the context has no room for others
    assert min(there["prefill_tokens_per_s"]["32"], there["decode_tokens_per_s"]) > 0
    assert there["same_replies"].endswith("of 2, of 64 greedy tokens each")
    assert content["tests"] == {"passed": 4}
    assert content["machine"]["driver"].startswith("OpenVINO 20")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def test_CPU():\n    assert False", "1 tests failed: test_CPU; to look at them: python"),
        ("def test_other():\n    pass", "no tests ran"),
        ("import nothing_of_this_name", "1 tests failed: "),
    ],
)
def test_nothing_is_written_if_a_test_fails(
    source: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(source)
    monkeypatch.setattr(measure_device, "TESTS", file)
    code, out = measured(tmp_path, "CPU")
    *_, line = capsys.readouterr().err.splitlines()
    assert (code, out.exists()) == (1, False)
    assert reason in line


@pytest.mark.usefixtures("calibrated")
def test_speeds_are_never_those_of_what_goes_on_for_a_device_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*given: Any) -> None:
        raise RuntimeError("ZE_RESULT_ERROR_DEVICE_LOST")

    monkeypatch.setattr(measure_device, "run_tests", lambda name: {"passed": 4})
    monkeypatch.setattr("edgerun.backends.openvino.network.Network.start", lost)
    code, out = measured(tmp_path, "NPUW-CPU")
    *_, line = capsys.readouterr().err.splitlines()
    assert (code, out.exists()) == (1, False)
    assert line.startswith("measure_device: openvino:NPUW-CPU ") and "DEVICE_LOST" in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--model", "/nowhere"), "there is no model at /nowhere"),
        (("--out", "/proc/nowhere/laptop.json"), "cannot be written: "),
    ],
)
def test_what_cannot_be_is_said_before_minutes_of_work(
    arguments: tuple[str, str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure_device, "run_tests", lambda name: pytest.fail("it ran tests"))
    code, out = measured(tmp_path, "CPU", *arguments)
    shown = capsys.readouterr()
    assert code in (1, 2) and not out.exists()
    assert shown.err.startswith("measure_device: ") and reason in shown.err
    assert shown.err.count("\n") == 1


def test_all_laptops_of_the_repository_can_be_planned_with() -> None:
    """Those that somebody measured are of devices, not of what stands in for one."""
    paths = sorted(measure_device.FOLDER.parent.rglob("*.json"))
    assert len(paths) >= 4
    for path in paths:
        assert Laptop.read(path).figures()
        assert not json.loads(path.read_text()).get("stands_in"), path


@pytest.mark.slow
@pytest.mark.parametrize("device", ["CPU", "NPUW-CPU"])
def test_the_whole_procedure(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the device's tests, its calibration, and the model that comes with edgerun."""
    monkeypatch.setattr(measure_device, "read_profile", lambda: HOST)
    out = tmp_path / "laptop.json"
    assert measure_device.main([device, "--out", str(out)]) == 0, capsys.readouterr().err
    content = json.loads(out.read_text())
    assert content["tests"]["passed"] >= 4
    assert Laptop.read(out).device.calls.keys() >= {ATTENTION, ELEMENTS}
    assert all(len(run["prefill_tokens_per_s"]) == 3 for run in content["runs"])
