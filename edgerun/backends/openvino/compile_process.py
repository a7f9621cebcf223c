"""Compiles networks in a process of its own: compilers take minutes, and some end in an abort.

The process opens the bundle itself and leaves a blob. It is killed when nobody waits any more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgerun.backends.openvino.devices import Config
from edgerun.backends.openvino.translation import Extent
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.state import AttentionState

logger = logging.getLogger(__name__)

CHILD = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from edgerun.backends.openvino.compile_blob import main; main()"
)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """What the process is to compile.

    Attributes:
        folder: of the bundle.
        digest: of the bundle.
        nodes: of the segment; plans may have changed those of the bundle's graph.
        inputs: of the segment.
        outputs: of the segment.
        shapes: of the inputs.
        extent: of the network.
        states: what the layers remember.
        device: of OpenVINO.
        config: options to compile with.
        threads: for devices that are the processor.
        name: of the blob.
        cache: folder of blobs.
    """

    folder: str
    digest: str
    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]
    shapes: dict[str, ValueShape]
    extent: Extent
    states: list[AttentionState]
    device: str
    config: dict[str, str]
    threads: int
    name: str
    cache: str

    def segment_of(self, graph: Graph) -> Graph:
        """The segment, with the constants of the bundle's graph."""
        shared = graph.constants, graph.source, self.shapes
        return Graph(self.nodes, self.inputs, self.outputs, *shared).with_nodes(self.nodes)


def job_of(
    segment: Graph,
    extent: Extent,
    states: list[AttentionState],
    config: Config,
    **others: str | int,
) -> bytes:
    """The job that makes a network of a segment, as the process reads it."""
    assert segment.source is not None
    values = {
        "folder": str(Path(segment.source).parent.absolute()),
        "nodes": segment.nodes,
        "inputs": segment.inputs,
        "outputs": segment.outputs,
        "shapes": {name: segment.shapes[name] for name in segment.inputs},
        "extent": extent,
        "states": states,
        "config": dict(config),
        **others,
    }
    return msgspec.json.encode(values)


class Compilation:
    """A process that compiles one network."""

    def __init__(self, job: bytes) -> None:
        """Starts it.

        Raises:
            OSError: it cannot be started.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at the terminal is for the reply, not for the compiler
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(job)  # unless it has ended, which is noticed

    def wait(self, seconds: float | None) -> bool:
        """Whether it ends within some seconds; None for as long as it takes."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def fault(self) -> str:
        """Once it has ended, why there is no blob; empty if there is one."""
        assert self._process.stdout is not None
        printed = self._process.stdout.read()
        code = self._process.returncode
        with contextlib.suppress(ValueError, KeyError, TypeError):
            fault: str = json.loads(printed)["fault"]
            return fault
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its compiler ended with {how}"

    def close(self) -> None:
        """Ends it; calling it twice is allowed."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
