"""Layers shared with a GPU, which is simulated: the processor's bits, whatever happens to it."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import edgerun
from edgerun.backends.base import Support
from edgerun.errors import BackendError, InputError, UnsupportedError
from edgerun.offload.cuda import CudaBackend
from edgerun.offload.cuda.device import CudaDevice
from tests.offload.cuda.simulator import simulated
from tests.support.bundles import bundle_of


@pytest.mark.parametrize("tokens", [5, pytest.param(16, marks=pytest.mark.slow)])
def test_tokens_are_those_of_the_processor_bit_for_bit_wherever_experts_are(tokens: int) -> None:
    told = simulated("tokens", str(tokens))
    shares = {}
    for place in ("all", "half", "cut", "none"):
        title, row, failure, resets, same = told[place]
        assert "simulated" in title and (failure, resets) == ("", 0)
        assert same == [True] * tokens
        shares[place] = int(row["on the CPU"].rstrip("%"))
    assert told["cut"][1]["cut"] != "0%" == told["none"][1]["cut"]
    assert shares["all"] == 0 < shares["half"] < shares["none"] == 100
    *replies, titles = told["loaded"]
    assert len(set(replies)) == 1 and len(titles) == 2


def test_the_processor_finishes_what_the_gpu_does_not() -> None:
    told = simulated("faults")
    error = "RuntimeError: [700] Call to cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS"
    assert told["once"] == [4, 1, ""]
    assert told["twice"] == told["answer"] == told["upload"] == [4, 1, error]
    assert told["stall"] == [4, 1, "it did not answer within 0.2 s"]
    assert told["taken"][:2] == told["full"][:2] == [4, 1]
    assert "end what else uses it, or give less gpu_memory" in told["taken"][2]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in told["full"][2]
    refused = "it does not start: RuntimeError: before forking"
    assert told["fork"] == [f"True {refused}", True, 0]
    assert told["lost"] == [4, 1, "RuntimeError: [201] CUDA_ERROR_INVALID_CONTEXT"]
    assert told["close"] == [[True, False, False, [], True]] * 2  # an upload that was under way
    assert told["stop"] == [False, True]


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the entry point of the project's own file, whatever is installed."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    (value,) = re.findall(r'^cuda = "(.*?)"', text, re.MULTILINE)
    point = EntryPoint("cuda", value, "edgerun.backends")
    monkeypatch.setattr("edgerun.backends.registry._added_backends", lambda: [point])


@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is not None, reason="the extra `cuda` is installed"
)
@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"device": "cuda:1"}, {"backend": "cuda"}])
def test_without_the_extra_a_sentence_says_so(asked: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError, match="does not run here: .*the extra `cuda` is not inst"):
        edgerun.load(bundle_of("olmoe", weights="int4"), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_there", [True, False])
def test_who_has_no_driver_is_told_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    from edgerun.offload.cuda import gpu

    def load(name: str) -> None:
        if not is_there:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu.ctypes, "CDLL", load)
    told = gpu.gpu_support(0).reason
    assert told.startswith("the extra" if is_there else "no driver of NVIDIA's here, and the extra")


def test_without_a_gpu_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import cuda

    from edgerun.offload.cuda import gpu

    class Driver:
        """No driver, no GPU, or one that is too old."""

        gpus: list[object] | None = None

        def __len__(self) -> int:
            if self.gpus is None:
                raise ImportError("Error at driver init: \n\nCUDA driver cannot be found.\n:")
            return len(self.gpus)

        def __getitem__(self, number: int) -> object:
            assert self.gpus is not None
            return self.gpus[number]

    class Old:
        compute_capability = 6, 1

    driver = Driver()
    monkeypatch.setattr(gpu, "find_spec", lambda name: name)
    monkeypatch.setattr(cuda, "gpus", driver)
    assert gpu.gpu_support(0) == Support(
        False, "no driver of NVIDIA's for a GPU: CUDA driver cannot be found"
    )
    driver.gpus = []
    assert gpu.gpu_support(0).reason == "there is no GPU number 0; the driver finds none"
    driver.gpus = [Old()]
    assert gpu.gpu_support(2).reason == "there is no GPU number 2; the driver finds only number 0"
    assert "compute capability 6.1; expected 7.5 or more" in gpu.gpu_support(0).reason


@pytest.mark.usefixtures("announced")
def test_bad_choices_are_refused_in_a_sentence() -> None:
    folder = bundle_of("olmoe", weights="int4")
    with pytest.raises(
        InputError, match="the GPU 'x' is no number: expected .* --device cuda:0 or"
    ):
        edgerun.load(folder, device="cuda:x")
    with pytest.raises(InputError, match="gpu_memory is '6%'; expected an amount such as 6G"):
        edgerun.load(folder, gpu_memory="6%")
    with pytest.raises(InputError, match="and no GPU was named that holds experts: name one"):
        edgerun.load(folder, gpu_memory="6G")


def test_memory_that_is_too_small_is_refused_with_what_would_do() -> None:
    from edgerun.offload.cuda.device import slots_of

    with pytest.raises(BackendError, match="gpu_memory is 0.001 MB and an expert takes 0.004"):
        slots_of(0, 1000, 4096)
    assert slots_of(0, 10_000, 4096) == 2
    assert CudaDevice.title == CudaBackend.title
