"""What ``edgerun doctor`` says of how many rows are multiplied by which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.machine.profile import MachineProfile

MICROSECONDS = 1e6
IN_TURNS = "in turns"


def row_paths(profile: MachineProfile, threads: int) -> dict[str, dict[str, Any]]:
    """What was measured of rows and what follows, by instruction set and kernel family.

    Args:
        profile: of this machine.
        threads: that work where no number is named.
    """
    from edgerun.backends.cpu.row_paths import measured_paths, timed_layers
    from edgerun.kernels.lang.isa import ISAS

    findings: dict[str, dict[str, Any]] = {}
    for name in (name for name in ISAS if name in profile.row_times):
        paths = measured_paths(ISAS[name], profile, threads)
        findings[name] = {
            kernels: {
                "threads": layers[0].threads,
                "blocks_by": paths[kernels].name or None,
                "from_rows": paths[kernels].least or None,
                "us_by_rows": [
                    {
                        IN_TURNS: _microseconds(times.turns),
                        **{path: _microseconds(each) for path, each in times.blocks.items()},
                    }
                    for times in layers
                ],
            }
            for kernels, layers in timed_layers(ISAS[name], profile, threads).items()
        }
    return findings


def row_note(profile: MachineProfile) -> str:
    """That this version makes nothing of some times of the instruction set in use, if so."""
    from edgerun.kernels.isa import selected_isa
    from edgerun.machine.profile import CALIBRATE, path
    from edgerun.machine.row_times import read_layers

    by_family = profile.row_times.get(selected_isa().name, {})
    if all(map(read_layers, by_family.values())):
        return ""
    return (
        f"times of rows in {path()} are damaged or of another version of edgerun, so they are "
        f"ignored; {CALIBRATE} them anew"
    )


def row_path_rows(findings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """The same as a person reads it."""
    return [
        {
            "instruction set": isa,
            "activations/weights": kernels,
            "threads": str(figures["threads"]),
            "us by rows, of a small and a large layer": "; ".join(
                f"{way} {', '.join(f'{rows}: {each}' for rows, each in by_rows.items())}"
                for layer in figures["us_by_rows"]
                for way, by_rows in layer.items()
            ),
            "taken": f"{figures['blocks_by']} from {figures['from_rows']} rows on"
            if figures["blocks_by"]
            else "turns, always",
        }
        for isa, by_family in findings.items()
        for kernels, figures in by_family.items()
    ]


def _microseconds(by_rows: Mapping[int, float]) -> dict[str, float]:
    return {str(rows): round(MICROSECONDS * each, 2) for rows, each in by_rows.items()}
