"""What is asked of NVIDIA's driver, by one that notes it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgerun.offload.cuda.streams import driver as streams


class CUresult(IntEnum):
    """Codes of the driver's functions."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Driver:
    """Answers every call with a number of its own; queries with a code that is set."""

    CUresult = CUresult
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.code, self._handles = CUresult.CUDA_SUCCESS, iter(range(1, 100))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name.endswith("Query"):
                return (self.code,)
            return CUresult.CUDA_SUCCESS, next(self._handles)

        return call

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of a function."""
        return [arguments for each, *arguments in self.calls if each == name]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    noting = Driver()
    monkeypatch.setattr(streams, "driver", noting)
    yield noting
    gc.collect()


@pytest.mark.parametrize(("kind", "what"), [(streams.Mark, "Event"), (streams.Stream, "Stream")])
def test_handles_are_given_back_once_nobody_has_them(
    driver: Driver, kind: type[Any], what: str
) -> None:
    first, second = kind(), kind()
    assert not driver.called(f"cu{what}Destroy")
    del first
    gc.collect()
    assert driver.called(f"cu{what}Destroy") == [[1]]
    assert second.__dict__.popitem()[1] == 2


@pytest.mark.parametrize(("kind", "ask"), [(streams.Mark, "is_past"), (streams.Stream, "is_done")])
def test_what_is_under_way_is_neither_done_nor_an_error(
    driver: Driver, kind: type[Any], ask: str
) -> None:
    is_done = getattr(kind(), ask)
    assert is_done()
    driver.code = CUresult.CUDA_ERROR_NOT_READY
    assert not is_done()
    driver.code = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(RuntimeError, match=r"\[700\] CUDA_ERROR_ILLEGAL_ADDRESS"):
        is_done()


def test_a_context_loads_a_kernel_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lives there are; another context, kernel or type is another one."""
    contexts = [object(), object()]
    current, compiled = contexts[0], []

    def compile_(function: Any, kinds: Any) -> tuple[str, None]:
        compiled.append((function, kinds))
        return ".visible .entry kernel(", None

    monkeypatch.setattr(streams, "compile_ptx_for_current_device", compile_)
    monkeypatch.setattr(streams, "cuda", SimpleNamespace(current_context=lambda: current))
    monkeypatch.setattr(streams, "_LOADED", {})
    functions = [lambda: None, lambda: None]
    kernels = [streams.Kernel(functions[0], (number,)) for number in (3, 4)]
    assert len(compiled) == len(driver.called("cuModuleLoadData")) == 1
    assert kernels[0].function == kernels[1].function
    assert [list(each._words) for each in kernels] == [[3], [4]]
    streams.Kernel(functions[1], (3,))
    streams.Kernel(functions[0], (3, 3))
    current = contexts[1]
    assert streams.Kernel(functions[0], (3,)).function != kernels[0].function
    assert len(compiled) == 4


def test_what_is_recorded_is_queued_by_one_call(driver: Driver) -> None:
    stream, here = streams.Stream(), np.zeros(4, np.uint8)
    place = SimpleNamespace(__cuda_array_interface__={"data": (64, False)})
    recording = streams.Recording(stream, lambda: stream.download(here, place))
    names = [name for name, *_ in driver.calls]
    assert names[1:] == [
        *("cuStreamBeginCapture", "cuMemcpyDtoHAsync", "cuStreamEndCapture"),
        *("cuGraphInstantiate", "cuGraphDestroy"),
    ]
    stream.replay(recording)
    stream.replay(recording)
    handle = recording.handle
    assert driver.called("cuGraphLaunch") == 2 * [[handle, stream.handle]]
    assert not driver.called("cuGraphExecDestroy")
    del recording
    gc.collect()
    assert driver.called("cuGraphExecDestroy") == [[handle]]


def test_a_recording_that_fails_leaves_the_stream_to_others(driver: Driver) -> None:
    def fail() -> None:
        raise RuntimeError("[700] CUDA_ERROR_ILLEGAL_ADDRESS")

    with pytest.raises(RuntimeError, match="700"):
        streams.Recording(streams.Stream(), fail)
    assert len(driver.called("cuStreamEndCapture")) == 1
    assert not driver.called("cuGraphInstantiate")
