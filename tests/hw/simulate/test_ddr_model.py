"""The DRAM model (``hw/tb/ddr.h``) by itself, against what can be worked out by hand."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from ctypes import POINTER, Structure, byref, c_double, c_uint32, c_uint64
from dataclasses import dataclass

import numpy as np
import pytest

from edgerun_hw.build.sources import hardware_folder
from edgerun_hw.simulate.library import DdrCounters, DdrOptions, ddr_options
from edgerun_hw.simulate.memory import DDR_PRESETS, DdrConfig
from edgerun_hw.simulate.toolchain import find_compiler

fpga = pytest.mark.fpga

KV260 = DDR_PRESETS["kv260"]
CALM = dataclasses.replace(KV260, trefi_ns=0.0)  # without refresh
LINES = 16  # of a burst of 64 beats
ROW = KV260.row_bytes
BANK_ROUND = ROW * KV260.banks  # the next row of the same bank


class Stream(Structure):
    _fields_ = [
        ("address", c_uint64),
        ("stride", c_uint64),
        ("bursts", c_uint32),
        ("beats", c_uint32),
        ("write", c_uint32),
        ("depth", c_uint32),
        ("finished", c_double),
        ("delivered", c_uint64),
    ]


@dataclass(frozen=True)
class Result:
    cycles: float
    lines: int
    counters: DdrCounters
    streams: list[Stream]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory):
    built = tmp_path_factory.mktemp("ddr") / "ddr.so"
    source = hardware_folder("tb") / "ddr_bench.cpp"
    command = [find_compiler().path, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-shared", "-fPIC", "-o", built, source], check=True)
    run = ctypes.CDLL(str(built)).ddr_bench
    run.restype = c_double
    run.argtypes = [POINTER(DdrOptions), POINTER(Stream), c_uint32, c_uint64, POINTER(DdrCounters)]

    def measure(config: DdrConfig | None, *streams: Stream, limit: int = 1_000_000) -> Result:
        array = (Stream * len(streams))(*streams)
        counters = DdrCounters()
        cycles = run(byref(ddr_options(config)), array, len(streams), limit, byref(counters))
        lines = counters.lines_read + counters.lines_written
        return Result(cycles, lines, counters, list(array))

    return measure


def stream(address: int, bursts: int, *, write: bool = False, **changes: int) -> Stream:
    values = {"stride": 1024, "beats": 64, "depth": 8, **changes}
    return Stream(address=address, bursts=bursts, write=write, **values)


@fpga
def test_one_sequential_stream_gets_the_bus_but_for_the_openings_of_rows(bench) -> None:
    result = bench(CALM, stream(0, 256))
    assert result.lines == 256 * LINES
    assert result.counters.row_misses == 256 * 1024 // ROW
    opening = CALM.cycles(CALM.trcd_ns + CALM.trp_ns)
    assert result.lines <= result.cycles
    most = result.lines + result.counters.row_misses * (opening + 1) + CALM.cycles(CALM.latency_ns)
    assert result.cycles <= most + 2


@fpga
def test_refresh_takes_its_share(bench) -> None:
    streams = [[stream(2 * port * ROW, 900, stride=0) for port in range(4)] for _ in range(2)]
    calm, refreshed = bench(CALM, *streams[0]), bench(KV260, *streams[1])
    lost = (KV260.trfc_ns + KV260.trp_ns) / KV260.trefi_ns
    assert (refreshed.cycles - calm.cycles) / refreshed.cycles == pytest.approx(lost, rel=0.1)
    assert refreshed.counters.refreshes == int(refreshed.cycles / KV260.cycles(KV260.trefi_ns))


@fpga
def test_streams_in_different_banks_share_the_bus_without_loss(bench) -> None:
    # Rows of one stream while another's is opened: at most the first openings cost time.
    streams = [stream(2 * port * ROW, 64, stride=0) for port in range(4)]
    result = bench(CALM, *streams)
    assert result.cycles <= 4 * 64 * LINES + CALM.cycles(CALM.latency_ns + 200)
    assert result.counters.row_misses == 4


@fpga
def test_streams_in_one_bank_pay_for_every_change_of_row(bench) -> None:
    config = dataclasses.replace(CALM, row_hit_limit=4)
    streams = [stream(port * BANK_ROUND, 64, stride=0) for port in range(2)]
    result = bench(config, *streams)
    changes = result.counters.row_misses
    assert changes >= result.lines // 8
    # A row is open for at least tRAS and takes tRP + tRCD to come.
    least = changes * config.cycles(config.trp_ns + config.trcd_ns)
    assert result.cycles >= least
    assert result.cycles >= 1.5 * result.lines


@fpga
def test_ports_are_served_nearly_alike(bench) -> None:
    # Open rows go first, so that not every port gets the same at every moment.
    streams = [stream((1 << 24) * port + 2 * port * ROW, 200) for port in range(5)]
    ends = [served.finished for served in bench(KV260, *streams).streams]
    assert max(ends) - min(ends) < 0.15 * max(ends)


@fpga
def test_turning_the_bus_costs_what_it_should(bench) -> None:
    result = bench(CALM, stream(0, 200), stream(4 * ROW, 200, write=True))
    assert result.counters.lines_written == 200 * LINES
    turns = result.counters.turnaround_cycles / CALM.cycles(CALM.turnaround_ns)
    assert turns == pytest.approx(round(turns))
    assert 2 * result.counters.lines_written / CALM.write_batch * 0.5 < turns
    assert result.cycles >= result.lines + result.counters.turnaround_cycles * 0.9


@fpga
def test_a_slower_bus_is_slower(bench) -> None:
    half = dataclasses.replace(CALM, bytes_per_second=CALM.bytes_per_second / 2)
    fast, slow = bench(CALM, stream(0, 500)).cycles, bench(half, stream(0, 500)).cycles
    assert slow / fast == pytest.approx(2, rel=0.1)


@fpga
def test_unaligned_bursts_take_a_line_more(bench) -> None:
    assert bench(CALM, stream(16, 10, beats=8)).lines == 10 * 3
    assert bench(CALM, stream(0, 10, beats=8)).lines == 10 * 2


@fpga
def test_ideal_memory_answers_after_its_latency(bench) -> None:
    result = bench(None, stream(0, 1))
    assert result.streams[0].finished == 8
    assert result.lines == 0


@fpga
@pytest.mark.parametrize("seed", range(40))
def test_every_request_is_served_once_whatever_the_pattern(bench, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = dataclasses.replace(
        KV260,
        banks=int(rng.choice([1, 2, 8])),
        row_hit_limit=int(rng.choice([1, 4, 64])),
        write_batch=int(rng.choice([1, 16])),
        trefi_ns=float(rng.choice([0.0, 900.0, 7800.0])),
    )
    streams = [
        stream(
            int(rng.integers(4)) * BANK_ROUND,
            int(rng.integers(1, 60)),
            stride=int(rng.choice([0, 1024, ROW, BANK_ROUND])),
            beats=int(rng.choice([1, 4, 16, 64])),
            depth=int(rng.choice([1, 8])),
            write=bool(port == 5),
        )
        for port in range(6)
    ]
    result = bench(config, *streams)
    assert result.cycles > 0, "somebody waits for ever"
    for served in result.streams[:5]:
        assert served.delivered == served.bursts * served.beats
    lines = [-(-served.beats // 4) * served.bursts for served in result.streams]
    assert result.counters.lines_read == sum(lines[:5])
    assert result.counters.lines_written == lines[5]


@pytest.mark.parametrize(
    "changes",
    [
        {"banks": 3},
        {"banks": 128},
        {"row_bytes": 0},
        {"line_bytes": 8},
        {"clock_mhz": 0.0},
        {"trcd_ns": -1.0},
        {"latency_ns": float("nan")},
    ],
)
def test_impossible_memories_are_refused(changes: dict[str, float]) -> None:
    (name,) = changes
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(KV260, **changes)


def test_the_preset_moves_a_line_a_cycle() -> None:
    assert KV260.bytes_per_cycle == KV260.line_bytes == 64
