"""Bugs put in on purpose, which the harness must find, or it is dead."""

from __future__ import annotations

import ctypes
import math
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from edgerun.backends.cpu.buffers import Buffer, BufferPool
from edgerun.engine.engine import DEFAULT_CHUNK_ROWS
from edgerun.graph import lower
from edgerun.graph.onnx_schema import onnx_messages
from edgerun.kernels.lang.signature import Signature
from edgerun.llm import loading
from edgerun.model import bundle
from edgerun.plan.workload import Workload
from edgerun.state.recurrent import RecurrentArrays

Plant = Callable[[], AbstractContextManager[None]]
LEAK_BYTES = 400 << 20
HANG_CPU_S = 0.5  # of a case that hangs on purpose


@contextmanager
def overflow() -> Iterator[None]:
    """Buffers of half the size that everything believes them to have."""
    take = BufferPool.take

    def small(self: BufferPool, width: int, dtype: str = "float32", **named: Any) -> Buffer:
        half = take(self, max(1, width // 2), dtype, **named)
        full = take(self, width, dtype, **named)
        whole = np.lib.stride_tricks.as_strided(half.array, full.array.shape, full.array.strides)
        return replace(half, array=whole, width=width)

    with mock.patch.object(BufferPool, "take", small):
        yield


@contextmanager
def unchecked() -> Iterator[None]:
    """No wall between the parser and the machine code: whatever the graph says is believed."""
    with (
        mock.patch.object(lower, "check", lambda graph: {}),
        mock.patch.object(bundle, "geometry", lambda graph: None),
        mock.patch.object(bundle, "confirm", lambda *_: None),
        mock.patch.object(Signature, "touched", lambda self, _: dict.fromkeys(self.memory, 0)),
        mock.patch.object(loading, "affordable_rows", lambda graph: DEFAULT_CHUNK_ROWS),
        mock.patch.object(loading, "workload", lambda graph: Workload()),
    ):
        yield


@contextmanager
def shifted() -> Iterator[None]:
    """States of recurrent layers where their memory ends."""
    fields = RecurrentArrays.fields

    def behind(self: RecurrentArrays, name: str) -> dict[str, int]:
        layer = self._layers[name]
        sizes = {
            declared.name: array.nbytes
            for declared, array in zip(self.states[layer].arrays, self._arrays[layer], strict=True)
        }
        return {key: where + sizes.get(key, 0) for key, where in fields(self, name).items()}

    with mock.patch.object(RecurrentArrays, "fields", behind):
        yield


def _at_reading(act: Callable[[Path], None]) -> Plant:
    """Something that happens whenever a model file is read."""

    @contextmanager
    def plant() -> Iterator[None]:
        read_graph = bundle.read_graph

        def read(path: Path, *arguments: Any, **named: Any) -> Any:
            act(path)
            return read_graph(path, *arguments, **named)

        with mock.patch.object(bundle, "read_graph", read):
            yield

    return plant


def _initializers(path: Path) -> list[Any]:
    from google.protobuf.message import DecodeError

    model = onnx_messages().ModelProto()
    with suppress(DecodeError, OSError):
        model.ParseFromString(path.read_bytes())
    return list(model.graph.initializer)


def escape(path: Path) -> None:
    """Opens whatever file a tensor names, wherever it is."""
    for tensor in _initializers(path):
        for entry in tensor.external_data:
            if entry.key == "location":
                with suppress(OSError, ValueError), (path.parent / entry.value).open("rb") as file:
                    file.read(10)


def leak(path: Path) -> None:
    """Makes room for what a tensor's shape says before it looks at the file."""
    for tensor in _initializers(path):
        np.ones(max(0, min(math.prod(tensor.dims), LEAK_BYTES)), np.uint8)


def _start_process(path: Path) -> None:
    subprocess.run(["/bin/true"], check=True)


def _open_socket(path: Path) -> None:
    socket.socket().close()


def _execute(path: Path) -> None:
    exec(compile("x = 1", str(path), "exec"))


def _open_natively(path: Path) -> None:
    ctypes.CDLL(None).open(b"/etc/passwd", 0)


def _print(path: Path) -> None:
    os.write(2, b"thread panicked")


def _hang(path: Path) -> None:
    while True:
        pass


def _abort(path: Path) -> None:
    os.abort()


PLANTS: dict[str, Plant] = {
    "": nullcontext,
    "overflow": overflow,
    "unchecked": unchecked,
    "shifted": shifted,
    "escape": _at_reading(escape),
    "leak": _at_reading(leak),
    "process": _at_reading(_start_process),
    "socket": _at_reading(_open_socket),
    "code": _at_reading(_execute),
    "native": _at_reading(_open_natively),
    "print": _at_reading(_print),
    "hang": _at_reading(_hang),
    "hidden crash": _at_reading(_abort),
}


def planted(name: str) -> AbstractContextManager[None]:
    """The bug of a name, while this lasts."""
    return PLANTS[name]()
