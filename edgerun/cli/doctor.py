"""``edgerun doctor``: what this machine has, and what is missing."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.extras import EXTRAS, extras_line, installed_version
from edgerun.cli.screen.messages import say
from edgerun.cli.screen.visible import folded

if TYPE_CHECKING:
    from edgerun.machine.devices import DeviceProfile

PACKAGES = ("numpy", "numba", "llvmlite", "onnx", "onnxruntime", "tokenizers", "minijinja")
MARGIN = " " * 11
EXAMPLES = options.examples(
    "edgerun doctor",
    "edgerun doctor --all",
    "edgerun doctor --calibrate",
    "edgerun doctor --calibrate ./my-model",
    "edgerun doctor --json",
)


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
            "planning; takes half a minute to some minutes, and as long for each device.",
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
        "packages": {name: installed_version(name) or "missing" for name in PACKAGES},
        "optional": {
            name: installed_version(name) or "not installed"
            for extra in EXTRAS.values()
            for name in extra.packages
        },
        "extras": {
            name: {"for": extra.purpose, "missing": extra.missing()}
            for name, extra in EXTRAS.items()
        },
        "folders": _folders(settings.cache_dir, settings.state_dir),
    }


def brief(findings: Mapping[str, Any]) -> list[str]:
    """Six lines of a diagnosis, the last of which says what to do."""
    from edgerun.cli.screen.tables import size

    machine, memory, backends = findings["machine"], findings["memory"], findings["back-ends"]
    speed = memory["read_gb_per_s"]
    read = f"read at {speed} GB/s" if isinstance(speed, float) else f"whose speed is {speed}"
    lacking = {name: extra["missing"] for name, extra in findings["extras"].items()}
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
        f"extras     {extras_line(lacking)}",
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
        f"measuring this machine's {isa} kernels with {threads} threads, which takes half a minute "
        "to some minutes, and as long for each device beside the processor; other programs that "
        "run meanwhile make it take longer, and look slower than it is"
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
    from edgerun.cli.screen.machine_rows import device_rows, disk_rows, kernel_rows, profile_rows
    from edgerun.cli.screen.row_times import row_path_rows
    from edgerun.cli.screen.tables import print_pairs, print_rows

    for title, part in findings.items():
        if title == "profile":
            print("profile")
            print_rows(profile_rows(part))
            print_rows(kernel_rows(part))
            print_rows(row_path_rows(part["row_paths"]))
            print_rows(device_rows(part))
        elif title == "disks":
            print_rows(disk_rows(part))
        elif title == "extras":
            print_pairs(title, {name: _extra(each) for name, each in part.items()})
        else:
            print_pairs(title, part)


def _extra(extra: Mapping[str, Any]) -> str:
    lacking = f"lacks {', '.join(extra['missing'])}" if extra["missing"] else "installed"
    return f"{lacking}; for {extra['for']}"


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
    from edgerun import env
    from edgerun.backends.registry import SIMULATED, make_backend, offered_names

    states = {}
    for name in (*offered_names(), *env.settings().devices.keys() & SIMULATED):
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
