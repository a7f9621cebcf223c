"""Tables of ``edgerun doctor --all``: speeds of memory, kernels, devices and disks."""

from __future__ import annotations

from typing import Any

CONTENDED_GOAL = 0.45


def profile_rows(profile: dict[str, Any]) -> list[dict[str, str]]:
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


def kernel_rows(profile: dict[str, Any]) -> list[dict[str, str]]:
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


def device_rows(profile: dict[str, Any]) -> list[dict[str, str]]:
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


def disk_rows(disks: dict[str, Any]) -> list[dict[str, str]]:
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
