"""The harness's C functions (``hw/tb/api.cpp``) for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_uint32, c_uint64
from ctypes import c_void_p as handle
from enum import IntEnum
from pathlib import Path

from edgerun_hw.simulate.memory import DdrConfig

ABI = 2
MAX_PORTS = 8
BEAT_BYTES = 16
IDEAL_LATENCY_CYCLES = 8.0  # of memory without a model of DRAM


class Status(IntEnum):
    """What a function says; mirrors ``Status`` of ``api.cpp``."""

    DONE = 0
    TIMED_OUT = 1
    ERROR_RESPONSE = 2
    REFUSED = 3


class DdrOptions(Structure):
    """``DdrOptions`` of ``ddr.h``."""

    _fields_ = [
        *(
            (name, c_double)
            for name in (
                *("bytes_per_cycle", "activate", "precharge", "row_active", "activate_spacing"),
                *("refresh_interval", "refresh_length", "turnaround", "latency"),
            )
        ),
        *(
            (name, c_uint32)
            for name in ("banks", "row_bytes", "line_bytes", "row_hit_limit", "write_batch")
        ),
    ]


class Options(Structure):
    """``Options`` of ``harness.h``."""

    _fields_ = [
        ("seed", c_uint64),
        ("weight_backpressure", c_double),
        ("data_backpressure", c_double),
        ("control_backpressure", c_double),
        ("max_burst", c_uint32),
        ("outstanding", c_uint32),
        ("ddr", DdrOptions),
    ]


class FaultOptions(Structure):
    """``Fault`` of ``faults.h``."""

    _fields_ = [
        ("kind", c_uint32),
        ("port", c_int32),
        ("skip", c_uint32),
        ("remaining", c_uint32),
        ("first", c_uint64),
        ("last", c_uint64),
        ("cycles", c_uint64),
        ("value", c_uint32),
    ]


class Delays(Structure):
    """``LitePort::Delays`` of ``axi_lite.h``."""

    _fields_ = [("address", c_uint32), ("data", c_uint32), ("response", c_uint32)]


class DdrCounters(Structure):
    """``DdrCounters`` of ``ddr.h``."""

    _fields_ = [
        *(
            (name, c_uint64)
            for name in ("lines_read", "lines_written", "row_hits", "row_misses", "refreshes")
        ),
        ("refresh_cycles", c_double),
        ("turnaround_cycles", c_double),
    ]


class Counters(Structure):
    """``Counters`` of ``api.cpp``."""

    _fields_ = [
        ("cycles", c_uint64),
        ("read_bursts", c_uint64 * MAX_PORTS),
        ("read_beats", c_uint64 * MAX_PORTS),
        ("write_bursts", c_uint64),
        ("write_beats", c_uint64),
        ("faults", c_uint64),
        ("ddr", DdrCounters),
    ]


# Result and arguments of each function, whose name starts with `edgerun_`.
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "abi": (c_int, []),
    "message": (c_char_p, []),
    "create": (handle, [POINTER(Options)]),
    "destroy": (None, [handle]),
    "reset": (None, [handle, c_uint64]),
    "step": (None, [handle, c_uint64]),
    "step_until_interrupt": (c_int, [handle, c_uint64]),
    "cycle": (c_uint64, [handle]),
    "interrupt": (c_int, [handle]),
    "read": (c_int, [handle, c_uint32, POINTER(c_uint32), c_uint64]),
    "write": (c_int, [handle, c_uint32, c_uint32, c_uint32, POINTER(Delays), c_uint64]),
    "poll": (
        c_int,
        [handle, c_uint32, c_uint32, c_uint32, c_uint64, c_uint64, POINTER(c_uint32)],
    ),
    "map": (c_int, [handle, c_uint64, c_uint64, handle]),
    "unmap": (c_int, [handle, c_uint64]),
    "add_fault": (None, [handle, POINTER(FaultOptions)]),
    "clear_faults": (None, [handle]),
    "counters": (None, [handle, POINTER(Counters)]),
    "clear_counters": (None, [handle]),
    "outstanding": (c_uint64, [handle]),
    "violation_count": (c_uint64, [handle]),
    "violation": (c_char_p, [handle, c_uint64]),
    "clear_violations": (None, [handle]),
    "open_trace": (c_int, [handle, c_char_p]),
    "close_trace": (None, [handle]),
    "write_coverage": (c_int, [handle, c_char_p]),
}


def load(path: Path) -> ctypes.CDLL:
    """Loads a library that ``build`` made.

    Raises:
        OSError: it is damaged or of another version.
    """
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"edgerun_{name}", None)
        if function is None:
            raise OSError(f"{path} has no function edgerun_{name}")
        function.restype, function.argtypes = result, arguments
    if library.edgerun_abi() != ABI:
        raise OSError(f"{path} is of another version")
    return library


def ddr_options(config: DdrConfig | None) -> DdrOptions:
    """Converts nanoseconds to cycles; None is ideal memory."""
    if config is None:
        return DdrOptions(latency=IDEAL_LATENCY_CYCLES)
    return DdrOptions(
        bytes_per_cycle=config.bytes_per_cycle,
        activate=config.cycles(config.trcd_ns),
        precharge=config.cycles(config.trp_ns),
        row_active=config.cycles(config.tras_ns),
        activate_spacing=config.cycles(config.tfaw_ns) / 4,
        refresh_interval=config.cycles(config.trefi_ns),
        refresh_length=config.cycles(config.trfc_ns),
        turnaround=config.cycles(config.turnaround_ns),
        latency=config.cycles(config.latency_ns),
        banks=config.banks,
        row_bytes=config.row_bytes,
        line_bytes=config.line_bytes,
        row_hit_limit=config.row_hit_limit,
        write_batch=config.write_batch,
    )
