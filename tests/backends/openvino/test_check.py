"""Networks that compute something else are not believed, whatever they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgerun
from edgerun.backends.openvino import devices
from edgerun.backends.openvino.check import ALLOWED
from edgerun.backends.openvino.session import Session
from edgerun.errors import BackendError
from tests.backends.openvino.conftest import Altered, placed
from tests.support.bundles import bundle_of

pytest.importorskip("openvino")

Arrays = list[NDArray[np.float32]]
Alter = Callable[[Arrays, Arrays], Arrays]
BAD, GOOD = {"PERF_COUNT": "YES"}, {"PERF_COUNT": "NO"}  # options that change nothing


def scaled(place: int, factor: float) -> Alter:
    def alter(inputs: Arrays, outputs: Arrays) -> Arrays:
        outputs = [array.copy() for array in outputs]
        outputs[place] *= np.float32(factor)
        return outputs

    return alter


def first_call_only(inputs: Arrays, outputs: Arrays) -> Arrays:
    """Wrong as soon as there is a past."""
    has_past = any(array.any() for array in inputs if array.shape[0] == 256)
    return [array * np.float32(1 - has_past) for array in outputs]


def refused(inputs: Arrays, outputs: Arrays) -> Arrays:
    raise RuntimeError("Exception from src/a.cpp:1:\nit does not like f16")


@pytest.fixture
def altered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Alter], list[Any]]:
    """Two configurations of the CPU, of which one computes what ``alter`` makes of it."""

    def install(alter: Alter, *, every: bool = False) -> list[Any]:
        compile_, compiled = Session.compile, []
        cpu = devices.DEVICES["CPU"]
        two = tuple({**cpu.configurations[0], **each} for each in (BAD, GOOD))
        monkeypatch.setattr(devices, "DEVICES", {"CPU": replace(cpu, configurations=two)})

        def compile_altered(session: Session, model: Any, config: Any) -> Any:
            compiled.append(config["PERF_COUNT"])
            request = compile_(session, model, config)
            if config["PERF_COUNT"] == "NO" and not every:
                return request
            return Altered(request, alter)

        monkeypatch.setattr(Session, "compile", compile_altered)
        return compiled

    return install


def one_head(inputs: Arrays, outputs: Arrays) -> Arrays:
    """Of two, in one layer."""
    outputs = [array.copy() for array in outputs]
    outputs[-1][:, :16] = outputs[-1][:, 16:32]
    return outputs


ALTERATIONS = {
    "a head": one_head,
    "keys": scaled(0, 1.5),
    "last values": scaled(-1, 1 + 2 * ALLOWED),
    "nan": scaled(1, float("nan")),
    "with a past": first_call_only,
    "an error": refused,
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_the_next_configuration_is_taken(name: str, altered: Callable[..., list[Any]]) -> None:
    compiled = altered(ALTERATIONS[name])
    with placed(bundle_of("llama", weights="fp32"), "prefill=openvino:CPU"):
        assert compiled == ["YES", "NO"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("keys", r"keys of past_key_values.0 differ by 0.5 of their size, 0.4 is allowed"),
        ("with a past", r"(keys|values) of past_key_values.\d differ by (0.75|1) of their size"),
        ("nan", "it computed NaN or infinity"),
        ("an error", "it does not like f16"),
    ],
)
def test_after_the_last_the_model_is_refused_with_figures(
    name: str, said: str, altered: Callable[..., list[Any]]
) -> None:
    altered(ALTERATIONS[name], every=True)
    with pytest.raises(BackendError, match=f"openvino:CPU cannot run this model: {said}"):
        edgerun.load(bundle_of("llama", weights="fp32"), place="prefill=openvino:CPU", threads=1)


def test_logits_of_a_device_that_decodes_are_looked_at(altered: Callable[..., list[Any]]) -> None:
    altered(scaled(0, 2), every=True)  # outputs come before keys and values
    with pytest.raises(BackendError, match="logits differ by 1 of their size"):
        edgerun.load(bundle_of("llama", weights="fp32"), place="decode=openvino:CPU", threads=1)


def test_small_differences_are_allowed(altered: Callable[..., list[Any]]) -> None:
    compiled = altered(scaled(0, 1 + ALLOWED / 2))
    with placed(bundle_of("llama", weights="fp32"), "prefill=openvino:CPU"):
        assert compiled == ["YES"]
