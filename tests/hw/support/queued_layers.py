"""A board with the glue unit in software, and layers of random weights that it queues whole.

What compiles when it is imported is imported where it is used: tests of this folder are collected
in every run, and run in few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.cpu import make as make_cpu
from edgerun.graph.ir import Graph, Node
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.backend.native.chain.words import K_RUNS
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate.board.dev import CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice, Faults
from tests.hw.support.overlays import normal, random_weight, replace_fake

BASE, MEMORY_BYTES = 0xA000_0000, 48 << 20
WIDTH, HIDDEN, DIM, BLOCK = 64, 96, 32, 32
COMMANDS = 16  # of two layers


class Board:
    """Device files over a device in software that has the glue unit."""

    def __init__(
        self,
        root: Path,
        faults: Faults | None = None,
        preset: str = "layer-300",
        queue_depth: int = 8,
    ) -> None:
        geometry = replace(PRESETS[preset], queue_depth=queue_depth)
        logic = FakeDevice(geometry, faults=faults, memory_bytes=2 * MEMORY_BYTES, coherent=True)
        self.logic = logic
        self.kernel = EmulatedKernel(root, logic, BASE, MEMORY_BYTES)
        self.glued, self.first = 0, -1  # commands of glue, and the first one's number
        compute = logic._compute

        def counting(queued: Any) -> Any:
            if queued.command.glue and not self.glued:
                self.first = queued.number
            self.glued += queued.command.glue
            return compute(queued)

        logic._compute = counting  # type: ignore[method-assign]

    def driver(self) -> Tlmm:
        return Tlmm(NativePort(self.kernel, BASE, CLOCK_HZ, "udmabuf0"))

    def hand_overs(self) -> int:
        """How often the processor has waited for the overlay since the last call."""
        names = self.kernel.writes
        waits = sum(a == "sync_for_device" and b == "sync_for_cpu" for a, b in pairwise(names))
        names.clear()
        return waits


MakeBoard = Callable[..., Board]


def make_boards(root: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBoard:
    """Makes boards, each in place of the device ``fake``; parameters are those of ``Board``."""
    numbers = count()

    def make(*args: Any, **options: Any) -> Board:
        emulated = Board(root / str(next(numbers)), *args, **options)
        replace_fake(monkeypatch, emulated.driver)
        return emulated

    return make


def layers(rng: np.random.Generator, activation: str, norms: bool, hidden: int = HIDDEN) -> Graph:
    """Two layers; ``norms``: also before the output projection and the down projection.

    ``hidden`` are the elements of a gate.
    """
    constants: dict[str, object] = {}
    nodes: list[Node] = []

    def linear(name: str, source: str, rows: int, k: int, residual: str = "") -> str:
        whole = (rows, -(-k // BLOCK) * BLOCK)
        weight = random_weight(rng, "ternary", whole, BLOCK, row_scales=True)
        constants[f"{name}.w"] = replace(weight, shape=(rows, k))
        inputs = (source, f"{name}.w", "", residual) if residual else (source, f"{name}.w")
        nodes.append(Node("linear", name, inputs, (f"{name}.y",), {"activations": "int8_row"}))
        return f"{name}.y"

    def norm(name: str, source: str, count: int) -> str:
        constants[f"{name}.w"] = 1 + normal(rng, 1, count)[0]
        inputs = (source, f"{name}.w")
        nodes.append(Node("rms_norm", name, inputs, (f"{name}.y",), {"epsilon": 1e-5}))
        return f"{name}.y"

    residual, before = "x", norm("first", "x", WIDTH)
    for layer in range(2):
        q, k, v = (linear(f"{part}{layer}", before, DIM, WIDTH) for part in "qkv")
        attrs = {"layer": layer, "num_heads": 1, "num_kv_heads": 1, "head_dim": DIM, "window": 0}
        attrs |= {"softcap": 0.0}
        attrs |= {"scale": np.float32(DIM**-0.5)}
        nodes.append(Node("attention", f"attention{layer}", (q, k, v), (f"a{layer}",), attrs))
        row = norm(f"row{layer}", f"a{layer}", DIM) if norms else f"a{layer}"
        residual = linear(f"o{layer}", row, WIDTH, DIM, residual)
        inner = norm(f"inner{layer}", residual, WIDTH)
        gate, up = (linear(f"{part}{layer}", inner, hidden, WIDTH) for part in ("gate", "up"))
        attrs = {"activation": activation}
        nodes.append(Node("gate", f"act{layer}", (gate, up), (f"h{layer}",), attrs))
        h = norm(f"sub{layer}", f"h{layer}", hidden) if norms else f"h{layer}"
        residual = linear(f"down{layer}", h, WIDTH, hidden, residual)
        before = norm(f"next{layer}", residual, WIDTH)
    return Graph(nodes, ["x"], [before], constants)  # type: ignore[arg-type]


def run(
    graph: Graph,
    tokens: int = 3,
    chains: int = 2,
    before: int = 0,
    checks: list[int] | None = None,
) -> NDArray[np.float32]:
    """What the device ``fake`` makes of a few rows of a sequence, after ``before`` other runs.

    ``checks`` gets how many runs there were then, and how many commands were computed again.
    """
    from edgerun_hw.backend.native.program import ProgramExecutable

    backend, cpu = FpgaBackend(), make_cpu()
    backend.use_device("fake")
    spec = same_attention(2, 1, DIM)
    fallback = lambda segment, shape: cpu.compile(segment, shape, CompileOptions(spec))  # noqa: E731
    options = CompileOptions(spec, fallback=fallback)
    executable = backend.compile(graph, Shape.of(1), options)
    assert isinstance(executable, ProgramExecutable)
    assert len(executable._chains) == chains
    if executable._memory is not None:
        executable._memory.checks[K_RUNS] = before
    rng, cache = np.random.default_rng(9), SequenceStore(spec, 64)
    slot, outs = cache.open(), []
    for position in range(tokens):
        cache.reserve(slot, position + 1)
        batch = Batch.of([0], position, slot)
        outs.append(executable(batch, cache, {"x": normal(rng, 1, WIDTH)})[graph.outputs[0]].copy())
    if checks is not None and executable._memory is not None:
        checks += executable._memory.checks.tolist()
    executable.close()
    backend.close()
    cpu.close()
    return np.concatenate(outs)
