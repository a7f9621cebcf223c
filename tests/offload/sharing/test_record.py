"""What sharing cost is kept, and plans go by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import edgerun
from edgerun import env
from edgerun.backends.registry import find_candidates
from edgerun.cli.main import main
from edgerun.offload.cuda import CudaBackend
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.sharing.record import (
    FOLDER,
    Price,
    Record,
    read_record,
    record_path,
    write_record,
)
from edgerun.offload.standin import StandinBackend
from tests.support.bundles import bundle_of
from tests.support.sharing import Fixed

DEVICE = "standin:memory=8M,link=1G"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder in which nothing is kept yet but the kernels of the usual one."""
    for kernels in env.settings().cache_dir.glob("kernels-*"):
        (tmp_path / kernels.name).symlink_to(kernels)
    folder = replace(env.settings(), cache_dir=tmp_path)
    monkeypatch.setattr("edgerun.offload.sharing.record.settings", lambda: folder)
    yield tmp_path / FOLDER


def folder() -> Path:
    return bundle_of("olmoe", weights="int4")


def generate(tokens: int, **options: object) -> None:
    with edgerun.load(folder(), device=DEVICE, **options) as llm:  # type: ignore[arg-type]
        llm.generate("O", max_tokens=tokens, seed=0, ignore_eos=True)


@pytest.fixture
def helpful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that gets something to do, whatever it takes."""

    def costs(self: StandinBackend, shape: tuple[int, int], nbytes: int) -> Estimates:
        return Estimates(Fixed(1e-3), Fixed(1e-6), Estimate(1e-3))

    monkeypatch.setattr(StandinBackend, "assumed_costs", costs)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["plan", str(folder()), "--device", DEVICE, "--json"]) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def test_it_is_what_was_learned(tmp_path: Path) -> None:
    estimates = Estimates(Estimate(1e-3, 1e-5), Estimate(2e-4), Estimate(5e-4))
    estimates.cpu.observe_one(4e-3)
    estimates.around.observe_one(1e-3)
    estimates.observe_exchange(1e-3)
    path = tmp_path / "folder" / "it.json"
    path.parent.mkdir(mode=0o700)
    write_record(path, Record.of(estimates, 700))
    record = read_record(path)
    assert record is not None and record.layers == 700
    again = record.estimates()
    assert again.cpu.of_one() == estimates.cpu.of_one() > 1.1e-3
    assert again.around.of_one() == estimates.around.of_one()
    assert (again.starts, again.exchange_s) == (estimates.starts, estimates.exchange_s)


@pytest.mark.parametrize("wrong", [
    b"{", b"{}", b"\xff", {"exchange_s": 0.0}, {"prices": {}}, {"layers": "x"},
    {"fixed_s": -1.0}, {"row_s": -1.0}, {"factors": {0: 0.0}},
    {"fixed_s": 1e3}, {"row_s": 1e3}, {"factors": {0: 1e3}},
])  # fmt: skip
def test_a_damaged_one_is_none(tmp_path: Path, wrong: bytes | dict[str, object]) -> None:
    path = tmp_path / "it.json"
    record = Record.of(Estimates(Estimate(1e-3), Estimate(2e-4), Estimate(5e-4)), 700)
    fields = msgspec.to_builtins(record)
    if isinstance(wrong, dict):
        of_price = set(wrong) & set(Price.__struct_fields__)
        (fields["prices"]["cpu"] if of_price else fields).update(wrong)
    path.write_bytes(wrong if isinstance(wrong, bytes) else msgspec.json.encode(fields))
    path.chmod(0o600)
    assert read_record(path) is None
    assert read_record(tmp_path / "none.json") is None


@pytest.mark.usefixtures("announced", "helpful")
def test_it_is_kept_when_enough_was_shared_and_plans_stand_on_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edgerun.offload.sharing.record.ENOUGH_LAYERS", 1)
    generate(3)  # the processor's alone, as planned
    assert not cache.exists()
    (device,) = told(capsys)["devices"]  # type: ignore[misc]
    assert "assumed" in device["notes"][-1]
    generate(70, share="always")
    (path,) = cache.iterdir()
    (device,) = told(capsys)["devices"]  # type: ignore[misc]
    assert re.search(r"costs measured 20\d\d-\d\d-\d\d, over \d+ layers", device["notes"][-1])
    record = read_record(path)
    assert record is not None
    for around_s, backends in ((1e-9, {"cpu", "standin"}), (1.0, {"cpu"})):
        cheap = {name: Price(1e-9, 0.0, {}) for name in record.prices}
        prices = {**cheap, "around": Price(around_s, 0.0, {})}
        write_record(path, Record(record.date, 9, 1e-9, prices))
        placements = told(capsys)["placements"]
        assert {row["backend"] for row in placements if row["chosen"]} == backends  # type: ignore[attr-defined, index]


@pytest.mark.usefixtures("announced", "cache", "helpful")
def test_of_few_layers_a_failure_or_a_simulation_nothing_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(8, share="always")
    assert not cache.exists()
    monkeypatch.setattr("edgerun.offload.sharing.record.ENOUGH_LAYERS", 1)
    with edgerun.load(folder(), device=DEVICE, threads=1, share="always") as llm:
        llm.generate("O", max_tokens=70, seed=0, ignore_eos=True)
        (session,) = (each._session for each in llm.model.backends if each.name == "standin")  # type: ignore[attr-defined]
        session.resets = 1
    assert not cache.exists()
    monkeypatch.setattr("edgerun.offload.cuda.gpu.gpu_name", lambda number: "")
    backend = CudaBackend()
    backend.configure({"keeps_costs": True})
    assert backend._record_path((8, 8), 100, is_inside=False) is None


@pytest.mark.usefixtures("announced")
def test_other_devices_and_layers_have_others() -> None:
    kinds = [
        {"shape": (8, 8), "nbytes": 9, "threads": 1},
        {"shape": (8, 8), "nbytes": 9, "threads": 2},
    ]
    paths = {record_path(name, kind) for name in ("a", "b") for kind in kinds}
    assert len(paths) == 4
    keys = set()
    for link in ("1G", "2G"):
        shared, cpu = find_candidates(device=f"standin:link={link}").backends
        keys.add(shared.device_key())  # type: ignore[attr-defined]
        cpu.close()
    assert len(keys) == 2
