"""How long networks for OpenVINO's devices take to make, and to load when they are on disk.

    python -m tools.bench.compile_times [MODEL ...] [--devices CPU NPUW-CPU] [--rounds 3]

Of each model the first network that a prompt needs: 64 rows after up to 256 tokens, comparison with
the CPU's kernels included, the import of OpenVINO left out. Each round has a process with an empty
cache of networks, one with a full one, and one without the device, whose memory is taken off that
of the second. The least counts. A table goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

from edgerun.env import settings
from edgerun.errors import EdgerunError
from edgerun.llm.loading import resolve

CHILD = "import sys; from tools.bench.compile_times import child; child(*sys.argv[1:])"
HEAD = "| model | device | compiled in s | from disk in s | file in MB | memory in MB |"


@dataclass(frozen=True, slots=True)
class Start:
    """What one process saw.

    Attributes:
        seconds: until the network could be used.
        file_bytes: of compiled networks on disk.
        memory_bytes: of the process with the model loaded.
    """

    seconds: float
    file_bytes: int
    memory_bytes: int


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--devices", nargs="+", default=["CPU", "NPUW-CPU"])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rule = "|---" * HEAD.count(" | ") + "|---|"
    sys.stdout.write(f"{HEAD}\n{rule}\n")
    for model in given.models or [resolve(None)]:
        for device in given.devices:
            sys.stdout.write(row(model, device, given.rounds) + "\n")
            sys.stdout.flush()


def row(model: Path, device: str, rounds: int) -> str:
    """A line of the table."""
    compiled, loaded, alone = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            compiled.append(start(model, f"openvino:{device}", cache))
            loaded.append(start(model, f"openvino:{device}", cache))
            alone.append(start(model, "cpu", cache))
    compile_s, load_s = (min(each.seconds for each in starts) for starts in (compiled, loaded))
    there, here = (min(each.memory_bytes for each in starts) for starts in (loaded, alone))
    return (
        f"| {model.parent.name if model.name == 'bundle' else model.name} | {device} "
        f"| {compile_s:.2f} | {load_s:.2f} | {loaded[0].file_bytes / 1e6:.0f} "
        f"| {(there - here) / 1e6:.0f} |"
    )


def start(model: Path, device: str, cache: str) -> Start:
    """Loads a model in a process of its own.

    Raises:
        EdgerunError: it could not.
    """
    command = [sys.executable, "-c", CHILD, str(model), device, cache]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EdgerunError(f"{model} does not load on {device}: {done.stderr.strip()}")
    return Start(**json.loads(done.stdout))


def child(model: str, device: str, cache: str) -> None:
    """Makes a model's first network, with another folder for networks than usual."""
    import psutil

    import edgerun
    from edgerun.backends.openvino import executable
    from edgerun.backends.openvino.session import openvino_core

    openvino_core()
    elsewhere = replace(settings(), cache_dir=Path(cache))
    with (
        patch.object(executable, "settings", lambda: elsewhere),
        edgerun.load(model, place=f"prefill={device}") as llm,
    ):
        sessions = (getattr(backend, "_session", None) for backend in llm.model.backends)
        tallies = [tally for session in sessions if session for tally in session.tallies]
        start = Start(
            seconds=sum(tally.compile_s for tally in tallies),
            file_bytes=sum(path.stat().st_size for path in Path(cache).rglob("*.blob")),
            memory_bytes=psutil.Process().memory_info().rss,
        )
    sys.stdout.write(json.dumps(asdict(start)))


if __name__ == "__main__":
    main()
