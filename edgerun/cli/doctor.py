"""``edgerun doctor``: what this machine has, and what is missing."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.messages import say
from edgerun.cli.screen.visible import folded

if TYPE_CHECKING:
    from edgerun.machine.devices import DeviceProfile

PACKAGES = ("numpy", "numba", "llvmlite", "onnx", "onnxruntime", "tokenizers", "minijinja")
CONTENDED_GOAL = 0.45
MARGIN = " " * 11
EXAMPLES = options.examples(
    "edgerun doctor",
    "edgerun doctor --all",
    "edgerun doctor --calibrate",
    "edgerun doctor --calibrate ./my-model",
    "edgerun doctor --json",
)
OPTIONAL = ("openvino", "openvino-genai", "numba-cuda", "safetensors", "gguf", "huggingface_hub")


def doctor(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="With --calibrate, measure the disk of this folder too; models that do not fit "
            "into memory are read from it while they run.",
        ),
    ] = None,
    as_json: options.Json = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all that is known, measured speeds included.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure memory, kernels, threads and other devices, and keep the result for "
            "planning; takes about half a minute, and as long for each device.",
        ),
    ] = False,
) -> None:
    if calibrate:
        _calibrate(folder)
    elif folder is not None:
        from edgerun.errors import InputError

        raise InputError(f"{folder}: doctor looks at a folder with --calibrate only: add it")
    findings = diagnosis()
    if as_json:
        print(json.dumps(findings, ensure_ascii=False))
    elif everything:
        _print(findings)
    else:
        for line in brief(findings):
            print(folded(line, sys.stdout, MARGIN))


def diagnosis() -> dict[str, Any]:
    """What ``--json`` prints."""
    from edgerun import __version__, env
    from edgerun.kernels.host.cores import cores, worker_threads
    from edgerun.machine.profile import processor_name

    settings = env.settings()
    threads = worker_threads(None)
    return {
        "edgerun": {"version": __version__, "python": sys.version.split()[0]},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "processor": processor_name(),
            "cores": cores().usable,
            **_cores(),
            "threads": threads,
            **_instructions(),
        },
        "memory": _memory(threads),
        "profile": _profile(threads),
        "disks": _disks(),
        "back-ends": _backends(),
        "packages": {name: _version(name) or "missing" for name in PACKAGES},
        "optional": {name: _version(name) or "not installed" for name in OPTIONAL},
        "folders": _folders(settings.cache_dir, settings.state_dir),
    }


def brief(findings: Mapping[str, Any]) -> list[str]:
    """Five lines of a diagnosis, the last of which says what to do."""
    from edgerun.cli.screen.tables import size

    machine, memory, backends = findings["machine"], findings["memory"], findings["back-ends"]
    speed = memory["read_gb_per_s"]
    read = f"read at {speed} GB/s" if isinstance(speed, float) else f"whose speed is {speed}"
    ready = [name for name, state in backends.items() if state.startswith("ready")]
    others = [name for name in backends if name not in ready]
    return [
        f"edgerun    {findings['edgerun']['version']}, Python {findings['edgerun']['python']}, "
        f"{machine['system']}, {machine['architecture']}",
        f"processor  {machine['processor']}, {machine['threads']} threads on "
        f"{machine['physical_cores']} cores, {machine['isa']} kernels",
        f"memory     {size(memory['total_bytes'])}, {size(memory['available_bytes'])} free, {read}",
        f"back-ends  {', '.join(ready) or 'none'}"
        + (f"; not ready: {', '.join(others)}" if others else ""),
        f"{'verdict':<11}{_verdict(findings)}, --all shows more",
    ]


def _verdict(findings: Mapping[str, Any]) -> str:
    """What is wrong, else what would be good to do."""
    missing = [name for name, state in findings["packages"].items() if state == "missing"]
    wrong = [f"{name} is missing, which `pip install {name}` mends" for name in missing]
    broken = {name: state for name, state in findings["back-ends"].items() if "broken" in state}
    wrong += [f"{name} is {state}" for name, state in broken.items()]
    if findings["back-ends"].get("cpu") != "ready" and "cpu" not in broken:
        wrong.append(f"cpu: {findings['back-ends'].get('cpu', 'missing')}")
    if wrong:
        return "; ".join(wrong)
    if not findings["profile"]["complete"]:
        return "nothing is missing; --calibrate measures speed"
    note = findings["profile"]["note"]
    return f"nothing is missing, but {note}" if note else "nothing is missing"


def _calibrate(folder: Path | None) -> None:
    from edgerun.kernels.host.cores import worker_threads
    from edgerun.kernels.isa import selected_isa
    from edgerun.plan.calibration.disk import check_folder
    from edgerun.plan.calibration.processor import calibrate

    if folder is not None:
        check_folder(folder)
    threads, isa = worker_threads(None), selected_isa().name  # refuse first, then measure
    say(
        f"measuring this machine's {isa} kernels with {threads} threads for about half a minute, "
        "and as long for each device beside the processor; other programs that run meanwhile "
        "make it look slower than it is"
    )
    calibrate(threads, lambda text: say(f"measuring {text}"), folder)


def _cores() -> dict[str, Any]:
    from edgerun.kernels.host.cores import cores

    counts = cores()
    return {
        "logical_cores": counts.logical,
        "physical_cores": counts.physical,
        "performance_cores": counts.performance,
        "cpu_quota": counts.quota,
    }


def _profile(threads: int) -> dict[str, Any]:
    """What was measured of this machine; figures that were not are None or left out."""
    from edgerun.cli.screen.row_times import row_note, row_paths
    from edgerun.machine.profile import absence, machine_profile, path

    profile = machine_profile()
    return {
        "file": str(path()),
        "measured": profile.measured or None,
        "complete": profile.complete,
        "note": absence() or row_note(profile),
        "threads": profile.threads,
        "read_gb_per_s": {
            str(count): round(speed / 1e9, 2) for count, speed in profile.bandwidth.items()
        },
        "int8_peak_tops": _tops(profile.peaks),
        "kernel_tops": _tops(profile.rates),
        "kernel_paths": {
            name: {str(rows): path for rows, path in by_rows.items()}
            for name, by_rows in profile.paths.items()
        },
        "row_paths": row_paths(profile, threads),
        "fork_join_us": {
            str(count): round(seconds * 1e6, 3) for count, seconds in profile.fork_join_s.items()
        },
        "contended": None if profile.contended is None else round(profile.contended, 3),
        "devices": {key: _device(device) for key, device in profile.devices.items()},
    }


def _disks() -> dict[str, Any]:
    """What was measured of disks."""
    from edgerun.machine.profile import read_disks

    return {
        key: {
            "measured": disk.measured,
            "direct_gb_per_s": _gigabytes(disk.direct),
            "buffered_gb_per_s": _gigabytes(disk.buffered),
            "is_direct": disk.is_direct,
            "threads": disk.threads,
        }
        for key, disk in read_disks().items()
    }


def _gigabytes(speeds: Mapping[int, float]) -> dict[str, float]:
    return {str(threads): round(speed / 1e9, 3) for threads, speed in speeds.items()}


def _device(device: DeviceProfile) -> dict[str, Any]:
    """What was measured of a device: speeds of linear layers by rows of a call, and costs."""
    return {
        "measured": device.measured,
        "tops": _tops(
            {
                kind: {call.rows: call.work / call.seconds for call in calls}
                for kind, calls in device.calls.items()
                if "/" in kind
            }
        ),
        "call_ms": round(device.call_s * 1e3, 3),
        "launch_ms": round(device.launch_s * 1e3, 3),
        "load_gb_per_s": device.load_bytes_s and round(device.load_bytes_s / 1e9, 2),
        "store_gb_per_s": device.store_bytes_s and round(device.store_bytes_s / 1e9, 2),
        "compile_s": round(device.compile_s, 2),
        "memory_a_weight_byte": round(device.memory_bytes / max(device.weight_bytes, 1), 1),
    }


def _tops(rates: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    """Multiply-adds a second as TOPS, by names and numbers."""
    return {
        name: {str(number): round(2e-12 * rate, 4) for number, rate in by_number.items()}
        for name, by_number in rates.items()
    }


def _print(findings: dict[str, Any]) -> None:
    from edgerun.cli.screen.row_times import row_path_rows
    from edgerun.cli.screen.tables import print_pairs, print_rows

    for title, part in findings.items():
        if title == "profile":
            print("profile")
            print_rows(_profile_rows(part))
            print_rows(_kernel_rows(part))
            print_rows(row_path_rows(part["row_paths"]))
            print_rows(_device_rows(part))
        elif title == "disks":
            print_rows(_disk_rows(part))
        else:
            print_pairs(title, part)


def _profile_rows(profile: dict[str, Any]) -> list[dict[str, str]]:
    """The profile as a person reads it."""
    if not profile["complete"]:
        note = "only in part: " if profile["measured"] else "not yet: "
        measured = profile["note"] or f"{note}`edgerun doctor --calibrate` does it"
    else:
        measured = f"{profile['measured']}, {profile['threads']} threads where none are named"
        measured += profile["note"] and f"; {profile['note']}"
    rows = {"measured": measured}
    for count, speed in profile["read_gb_per_s"].items():
        rows[f"memory read with {_threads(count)}"] = f"{speed} GB/s"
    for count, microseconds in profile["fork_join_us"].items():
        rows[f"starting an instruction with {_threads(count)}"] = f"{microseconds} us"
    for path, by_threads in profile["int8_peak_tops"].items():
        for count, tops in by_threads.items():
            rows[f"int8 peak by {path} with {_threads(count)}"] = f"{tops:.3f} TOPS"
    if profile["contended"] is not None:
        rows["decoding while another process takes a core"] = (
            f"{profile['contended']:.2f} of the idle speed (wanted: {CONTENDED_GOAL} or more)"
        )
    return [{"what": name, "figure": value} for name, value in rows.items()]


def _kernel_rows(profile: dict[str, Any]) -> list[dict[str, str]]:
    """Speed of every kernel family by batch rows."""
    paths = profile["kernel_paths"]
    return [
        {
            "activations/weights": name,
            "TOPS by rows": _by_rows(by_rows),
            "blocks of rows by": ", ".join(dict.fromkeys(paths.get(name, {}).values())),
        }
        for name, by_rows in profile["kernel_tops"].items()
    ]


def _device_rows(profile: dict[str, Any]) -> list[dict[str, str]]:
    """Speed of every device, by rows of a call, and what its calls cost besides."""
    return [
        {
            "device": title,
            "activations/weights": kind,
            "TOPS by rows": _by_rows(by_rows),
            "a call, launch": f"{device['call_ms']} ms, {device['launch_ms']} ms",
            "measured": device["measured"],
        }
        for title, device in profile["devices"].items()
        for kind, by_rows in device["tops"].items()
    ]


def _disk_rows(disks: dict[str, Any]) -> list[dict[str, str]]:
    """Speed of every disk by threads, and how models are read from it."""
    return [
        {
            "disk": key,
            "read directly, GB/s by threads": _by_rows(disk["direct_gb_per_s"]) or "refused",
            "through the cache": _by_rows(disk["buffered_gb_per_s"]),
            "models are read": ("directly" if disk["is_direct"] else "through the cache")
            + f" by {_threads(str(disk['threads']))}",
            "measured": disk["measured"],
        }
        for key, disk in disks.items()
    ]


def _by_rows(tops: dict[str, float]) -> str:
    return ", ".join(f"{rows}: {each:.3f}" for rows, each in tops.items())


def _threads(count: str) -> str:
    return f"{count} thread{'' if count == '1' else 's'}"


def _instructions() -> dict[str, Any]:
    from edgerun.kernels import isa

    return {
        "isa": isa.selected_isa().name,
        "isas": isa.available_isas(),
        "amx": isa.obstacle("amx") or "permitted",
        "bfloat16": isa.bfloat16_multiplier(isa.selected_isa()) or "none",
        "features": sorted(isa.host_features()),
    }


def _memory(threads: int) -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "read_gb_per_s": _bandwidth(threads),
    }


def _bandwidth(threads: int) -> float | str:
    from edgerun.machine.profile import machine_bandwidth

    try:
        return round(machine_bandwidth(threads) / 1e9, 2)
    except Exception as error:  # a doctor reports what is broken, whatever it is
        return f"broken: {type(error).__name__}: {error}"


def _backends() -> dict[str, str]:
    from edgerun.backends.registry import backend_names, make_backend

    states = {}
    for name in backend_names():
        try:
            backend = make_backend(name)
            if backend.is_simulated:
                continue
            for device, support in backend.devices().items():
                ready = f"ready: {support.reason}" if support else support.reason
                states[f"{name}:{device}"] = ready
            if not backend.devices():
                support = backend.probe()
                states[name] = "ready" if support else support.reason
        except Exception as error:  # a doctor reports what is broken, whatever it is
            states[name] = f"broken: {type(error).__name__}: {error}"
    return states


def _folders(cache: Path, state: Path) -> dict[str, str]:
    from edgerun.llm.loading import own_model

    return {"cache": str(cache), "state": str(state), "default_model": str(own_model() or "none")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
