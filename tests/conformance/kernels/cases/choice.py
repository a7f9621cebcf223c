"""Cases of the kernels that choose a token, against the processors of the engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.kernels.choice.numbers import (
    BLOCK,
    COUNT,
    HIGHEST,
    LEAST,
    NUMBERS,
    REFUSED,
    RESULTS,
    TEMPERATURE,
    TOKEN,
    TOP_P,
    UNIFORM,
)
from tests.conformance.kernels.harness import F32, UNTOUCHED, Call, cases_of, untouched

NOTHING: Any = {}
NARROWING = {"top_k": 40, "min_p": 0.02}
PENALTIES: dict[str, Any] = {
    "logit_bias": {3: 1.5, 1: -9.0},
    "repetition_penalty": 1.3,
    "presence_penalty": 0.7,
    "frequency_penalty": -0.3,
}
PROMPT, REPLY = [4, 0, 4, 2], [2, 2, 3]
SIZES = [5, 16, 700, 5000]


def logits_of(size: int) -> F32:
    """Some equal, some impossible."""
    rng = np.random.default_rng(size)
    logits = np.round(rng.normal(0, 3, size), 1).astype(np.float32)
    logits[rng.random(size) < 0.05] = -np.inf
    logits[size // 2] = 7
    return logits


def memory(size: int) -> dict[str, NDArray[Any]]:
    """The arrays that both kernels work in."""
    floats = {name: untouched((size,)) for name in ("keys", "depths", "spare")}
    numbers = np.zeros(NUMBERS)
    numbers[[LEAST, TOP_P]] = 1
    return {
        **floats,
        "ids": untouched((size,), np.int32),
        "numbers": numbers,
        "result": np.full(RESULTS, UNTOUCHED, np.int64),
    }


def fields_of(logits: F32, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``candidates`` for options of sampling."""
    arrays = memory(len(logits))
    numbers = arrays["numbers"]
    numbers[TEMPERATURE] = options.get("temperature", 0)
    numbers[LEAST] = math.log(options.get("min_p", math.e))
    seen, said, counts = np.empty((3, 0), np.int64)
    if "repetition_penalty" in options:
        seen = np.unique([*PROMPT, *REPLY])
        said, counts = np.unique(REPLY, return_counts=True)
        numbers[1:4] = [options[name] for name in list(PENALTIES)[1:]]
    bias = options.get("logit_bias", {})
    return arrays | {
        "logits": logits,
        "size": len(logits),
        "biased": np.array(list(bias), np.int64),
        "bias": np.array(list(bias.values()), np.float32),
        "biases": len(bias),
        "seen": seen,
        "seen_count": len(seen),
        "said": said,
        "counts": counts,
        "said_count": len(said),
        "top_k": options.get("top_k", 0),
        "largest_only": int(options.get("temperature") == 0),
    }


def chooser_of(size: int, options: dict[str, Any], uniform: float = 0.5) -> Chooser:
    """One that does the same by its processors alone."""
    chooser = Chooser(SamplingParams(**options), PROMPT, size, lambda position: uniform)
    chooser._chain = None
    for id_ in REPLY if "repetition_penalty" in options else ():
        chooser.accept(id_)
    return chooser


@cases_of(
    "candidates",
    size=SIZES,
    options=[
        NOTHING,
        {"temperature": 0.7},
        {"temperature": 1.7, **NARROWING},
        {**PENALTIES, "top_k": 3},
        {**PENALTIES, **NARROWING, "temperature": 0.3},
        {"min_p": 1.0},
        {"top_k": 2000},
    ],
)
def candidates(size: int, options: dict[str, Any]) -> Call:
    logits = logits_of(size)
    fields = fields_of(logits, options)
    expected = chooser_of(size, options)._filtered(logits)
    highest = expected.logits.max()
    depths = "keys" if "temperature" in options else "depths"

    def check() -> None:
        count = fields["result"][COUNT]
        assert count == len(expected.logits)
        assert fields["numbers"][HIGHEST] == highest
        np.testing.assert_array_equal(fields["keys"][:count], expected.logits)
        np.testing.assert_array_equal(fields[depths][:count], expected.logits - highest)
        if count < size:
            np.testing.assert_array_equal(fields["ids"][:count], expected.ids)

    return Call({}, fields, 0, check, 1)


@cases_of("candidates", size=SIZES, options=[{"temperature": 0}, {"temperature": 0, **PENALTIES}])
def largest_only(size: int, options: dict[str, Any]) -> Call:
    logits = logits_of(size)
    logits[-1] = logits.max()
    fields = fields_of(logits, options)
    expected = chooser_of(size, options).draw(logits)

    def check() -> None:
        assert fields["result"][TOKEN] == expected

    return Call({}, fields, 0, check, 1)


@cases_of("candidates", place=[0, 20, 36], wrong=[np.nan, np.inf, -np.inf, "seen", "said"])
def refused(place: int, wrong: float | str) -> Call:
    """Logits with a NaN or an infinite one, none that is possible, ids that are none."""
    logits = logits_of(37)
    fields = fields_of(logits, PENALTIES)
    if isinstance(wrong, str):
        fields[wrong] = fields[wrong].copy()
        fields[wrong][-1] = 37 if place else -1
    elif wrong == -np.inf:
        logits[:] = wrong
    else:
        logits[place] = wrong

    def check() -> None:
        assert fields["result"].tolist() == [REFUSED, REFUSED]

    return Call({}, fields, 0, check, 1)


@cases_of(
    "draw",
    size=SIZES,
    options=[
        NOTHING,
        {"top_k": 40},
        {"top_p": 0.5},
        {"top_p": 0.999999},
        {"top_p": 0.9, "min_p": 0.2},
        {"top_k": 30, "top_p": 0.7},
    ],
    uniform=[0.0, 0.4, 1 - 2**-53],
)
def draw(size: int, options: dict[str, Any], uniform: float) -> Call:
    logits = logits_of(size)
    chooser = chooser_of(size, options, uniform)
    narrowed = {name: value for name, value in options.items() if name == "top_k"}
    given = chooser_of(size, narrowed)._filtered(logits)
    count, highest = len(given.logits), given.logits.max()
    fields: dict[str, Any] = memory(size) | {
        "size": size,
        "weights": untouched((size,)),
        "places": untouched((size,), np.int32),
        "sums": np.zeros(1 + size // BLOCK),
    }
    fields["keys"][:count] = given.logits
    fields["weights"][:count] = np.exp(given.logits - highest)
    fields["ids"][:count] = np.arange(size) if given.ids is None else given.ids
    fields["result"][COUNT] = count
    numbers = fields["numbers"]
    numbers[HIGHEST], numbers[UNIFORM] = highest, uniform
    numbers[LEAST] = math.log(options.get("min_p", math.e))
    numbers[TOP_P] = options.get("top_p", 1)
    expected = chooser.draw(logits)

    def check() -> None:
        assert fields["result"][TOKEN] == expected

    return Call({}, fields, 0, check, 1)
