"""What cannot be done is one sentence on the command line, and what can be done is done."""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edgerun
from edgerun.backends.openvino import blobs, devices
from edgerun.backends.openvino import session as sessions
from edgerun.backends.openvino.devices import DEVICES
from edgerun.cli.main import main
from edgerun.errors import BackendError, PromptError
from edgerun.machine.devices import Call, DeviceProfile, device_key
from edgerun.machine.profile import MachineProfile
from tests.backends.openvino.test_places import ids_of
from tests.support.bundles import bundle_of
from tests.support.machines import EVERYTHING, INTEL, OPENCL, Pretend

pytest.importorskip("openvino")

PLACE = "prefill=openvino:CPU"
# 17 tokens or more, or it would not leave the place of replies.
PROMPT = "Once upon a time there was a small dog that could talk. It talked all day long."


@pytest.fixture
def folder() -> Path:
    return bundle_of("llama", weights="fp32")


def typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    return code, *capsys.readouterr()


def run_at(
    capsys: pytest.CaptureFixture[str], folder: Path, place: str, *options: str
) -> tuple[int, str, str]:
    return typed(
        capsys, "run", str(folder), "-p", PROMPT, "--raw", "-n", "4", "--temperature", "0",
        "--ignore-eos", "--json", "--place", place, *options,
    )  # fmt: skip


def assert_refused(result: tuple[int, str, str], *parts: str) -> None:
    """One line, which says all of this."""
    code, out, err = result
    assert (code, out) == (2, "") or (code, out) == (1, "")
    assert err.startswith("edgerun: ") and err.count("\n") == 1, err
    for part in parts:
        assert part in err


def test_openvino_is_not_installed(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    pretend: Pretend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "openvino" else find(name)
    )
    assert_refused(
        run_at(capsys, folder, PLACE), "OpenVINO is not installed: pip install 'edgerun[npu]'"
    )


def test_openvino_is_too_old(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    pretend: Pretend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "installed_version", lambda: "2025.4.1")
    assert_refused(
        run_at(capsys, folder, PLACE),
        "OpenVINO 2025.4.1 is too old, 2026.4 or newer is needed: pip install 'edgerun[npu]'",
    )


class Broken(ModuleType):
    """A package whose libraries are missing."""

    def __getattr__(self, name: str) -> None:
        if name == "Core":
            raise ImportError("libtbb.so.12: cannot open shared object file")
        raise AttributeError(name)


def test_openvino_cannot_be_loaded(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it installed, or libraries of another system."""
    monkeypatch.setattr(sessions, "_core", sessions._core.__wrapped__)
    broken = Broken("openvino")
    broken.__spec__ = importlib.util.find_spec("openvino")
    monkeypatch.setitem(sys.modules, "openvino", broken)
    assert_refused(
        run_at(capsys, folder, PLACE),
        "OpenVINO cannot be loaded (libtbb.so.12: cannot open shared object file): ",
        "pip install 'edgerun[npu]' --force-reinstall",
    )


def test_openvinos_tokenizers_are_not_needed(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("openvino_tokenizers", "openvino_genai"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = run_at(capsys, folder, PLACE, "--require", "openvino:CPU")
    assert code == 0, err
    assert len(json.loads(out)["ids"]) == 4


@pytest.mark.parametrize("device", ["NPU", "GPU"])
def test_a_device_whose_files_are_here_and_that_openvino_does_not_find(
    device: str, capsys: pytest.CaptureFixture[str], folder: Path, pretend: Pretend
) -> None:
    """Here OpenVINO itself lists no NPU, and cannot load what drives GPUs."""
    pretend(*EVERYTHING, vendors=[INTEL], accelerators=1)
    reason = {
        "NPU": "OpenVINO lists no NPU, though its files are here: its driver may be too old",
        "GPU": "libOpenCL.so.1: cannot open shared object file",
    }[device]
    result = run_at(capsys, folder, f"prefill=openvino:{device}")
    assert_refused(result, f"openvino:{device} does not run here: ", reason)


class Core:
    """An OpenVINO that lists some devices, which have so much memory."""

    def __init__(self, listed: list[str], memory: int = 1 << 40) -> None:
        self._listed, self._memory = listed, memory

    def get_property(self, plugin: str, name: str) -> Any:
        if name.endswith("TOTAL_MEM_SIZE"):
            return self._memory
        return self._listed

    def compile_model(self, *given: Any) -> None:
        raise AssertionError("it was compiled")


@pytest.mark.parametrize("name", ["GPU.1", "GPU"])
def test_a_second_gpu_that_openvino_does_not_list(
    name: str,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    pretend: Pretend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(*EVERYTHING, vendors=[INTEL, INTEL])
    monkeypatch.setattr(sessions, "openvino_core", lambda: Core(["0"] if "." in name else []))
    there = "no GPU.1, only GPU.0" if "." in name else "no GPU"
    assert_refused(
        run_at(capsys, folder, f"prefill=openvino:{name}"), f"OpenVINO lists {there}, though its"
    )


@pytest.mark.parametrize("device", ["NPU", "GPU.1", "CPU", "NPUW-CPU"])
def test_a_model_larger_than_the_memory_of_a_device(
    device: str,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    pretend: Pretend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a device that is the processor, than what is free, or the system would end the process."""
    pretend(*EVERYTHING, vendors=[INTEL, INTEL], accelerators=1)
    monkeypatch.setattr(sessions, "openvino_core", lambda: Core(["0", "1"], memory=10_000))
    monkeypatch.setattr(sessions, "available_memory", lambda: 10_000)
    assert_refused(
        run_at(capsys, folder, f"prefill=openvino:{device}"),
        f"openvino:{device} cannot run this model: its weights would take 0.00 GB there, and 0.00",
        "export it with fewer bits, or leave it to the CPU",
    )


def test_a_gpu_without_the_loader_of_opencl(
    capsys: pytest.CaptureFixture[str], folder: Path, pretend: Pretend
) -> None:
    pretend(vendors=[INTEL])
    assert_refused(
        run_at(capsys, folder, "decode=openvino:GPU"),
        "libOpenCL.so.1 is missing: apt install ocl-icd-libopencl1 intel-opencl-icd",
    )


def test_a_loader_of_opencl_without_a_gpu(
    capsys: pytest.CaptureFixture[str], folder: Path, pretend: Pretend
) -> None:
    pretend(OPENCL)
    assert_refused(run_at(capsys, folder, "decode=openvino:GPU"), "no GPU of Intel's: ")


@pytest.mark.parametrize("device", ["HETERO:NPU,CPU", "AUTO:NPU,CPU", "AUTO", "MULTI:GPU,NPU"])
@pytest.mark.parametrize("named_by", ["place", "device"])
def test_devices_that_stand_for_several_name_the_option(
    device: str, named_by: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    named = {
        "place": ("--place", f"prefill=openvino:{device}"),
        "device": ("--backend", "openvino", "--device", device),
    }[named_by]
    assert_refused(
        typed(capsys, "run", str(folder), "-p", "hi", *named), repr(device), "--place prefill="
    )


def test_what_another_driver_measured_counts_as_none_and_plans_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = {1: 1e9, 128: 1e9}
    old = DeviceProfile({"float/int4": (Call(64, 10**9, 1e-6),)}, version="OpenVINO 2026.4.0")
    profile = MachineProfile(
        bandwidth={1: 1e9},
        rates={"float/int4": rate},
        fork_join_s={1: 1e-7},
        devices={device_key("openvino:CPU", old.version): old},
    )
    monkeypatch.setattr("edgerun.machine.profile.machine_profile", lambda: profile)
    monkeypatch.setattr("edgerun.backends.openvino.machine_profile", lambda: profile)
    code, out, _ = typed(capsys, "plan", "--explain")
    assert code == 0
    text = " ".join(out.split())
    assert "openvino:CPU assumed: measured with OpenVINO 2026.4.0 only; `edgerun doctor" in text
    assert "measures this device anew" in text


def test_a_prompt_as_long_as_the_context(folder: Path) -> None:
    prompt = ids_of("llama", 130)
    replies = []
    for place in ("prefill=cpu", f"{PLACE},decode=openvino:CPU"):
        with edgerun.load(folder, place=place, threads=1, context=128) as llm:
            for length in (128, 129):
                with pytest.raises(
                    PromptError, match=f"has {length} tokens and the context is 128"
                ):
                    llm.generate(prompt[:length], max_tokens=1)
            longest = llm.generate(prompt[:127], temperature=0, max_tokens=8, ignore_eos=True)
            replies.append((longest.ids, longest.finish_reason))
    assert replies[0] == replies[1]


@pytest.mark.parametrize("chunk_rows", [17, 50, 100])
def test_calls_of_rows_that_no_network_has(chunk_rows: int, folder: Path) -> None:
    """Networks have 64, 256 or 1,024 rows, and what does not fill them is padded."""
    prompt = ids_of("llama", 110)
    replies = []
    for place in ("prefill=cpu", PLACE):
        with edgerun.load(folder, place=place, threads=1, chunk_rows=chunk_rows) as llm:
            reply = llm.generate(prompt, temperature=0, max_tokens=16, ignore_eos=True)
            replies.append(reply.ids)
            calls = sum(row["calls"] for report in llm.reports() for row in report.rows)
    assert replies[0] == replies[1]
    assert calls


def test_storage_of_keys_and_values_changes_between_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks neither read nor write pages, so those on disk serve all storage types."""
    prompt, loaded = ids_of("llama", 60), []
    load = sessions.Session.load
    monkeypatch.setattr(
        sessions.Session, "load", lambda *given: (loaded.append(1), load(*given))[1]
    )
    for kv_cache in ("fp16", "int8", "fp32"):
        replies = []
        for place in ("prefill=cpu", PLACE):
            with edgerun.load(folder, place=place, threads=1, kv_cache=kv_cache) as llm:
                reply = llm.generate(prompt, temperature=0, max_tokens=12, ignore_eos=True)
                replies.append(reply.ids)
        assert replies[0] == replies[1], kv_cache
    assert len(loaded) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_cache_folder_that_is_full_or_read_only_costs_a_line(
    number: int,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(number, "it cannot be written", str(path))

    monkeypatch.setattr(blobs, "write_atomically", refuse)
    code, out, _ = run_at(capsys, folder, PLACE, "--require", "openvino:CPU")
    assert code == 0 and len(json.loads(out)["ids"]) == 4
    (line,) = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.startswith("networks are compiled at every start, since ")
    remedy = "make room there" if number == errno.ENOSPC else "to a folder that can be written"
    assert remedy in line and "set EDGERUN_CACHE" in line


def test_a_child_that_cannot_keep_what_it_compiled_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    cpu = replace(DEVICES["CPU"], compiles_in_child=True)
    monkeypatch.setattr(devices, "DEVICES", {**DEVICES, "CPU": cpu})
    (cache_dir / "openvino").write_text("no folder")
    with pytest.raises(
        BackendError, match="networks cannot be kept in .*: make room there, or set"
    ):
        edgerun.load(folder, place=PLACE, threads=1)
