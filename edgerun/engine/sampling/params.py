"""What a caller may ask of the sampler, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TypedDict

from edgerun.errors import SamplingError
from edgerun.values import as_int, shown

MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**64 - 1
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 4096
MAX_BIASES = 4096


class SamplingKeywords(TypedDict, total=False):
    """``SamplingParams`` as keyword arguments, for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_ids: Iterable[int]
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a reply ends; the defaults change nothing.

    Attributes:
        temperature: 0 takes the likeliest token; 1 is the model's own distribution; up to 100.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the fewest tokens whose probabilities sum to at least this; 1 keeps all
            (Holtzman et al. 2020, "The curious case of neural text degeneration").
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 keeps all
            (Nguyen et al. 2024, "Turning up the heat").
        typical_p: keep the tokens whose surprise is nearest to the entropy and that sum to at
            least this; 1 keeps all (Meister et al. 2023, "Locally typical sampling").
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in
            prompt or reply (Keskar et al. 2019, "CTRL"); 1 is none.
        presence_penalty: subtracted once from logits of tokens in the reply, -2 to 2.
        frequency_penalty: subtracted per occurrence in the reply, -2 to 2.
        logit_bias: added to the logits of single ids, -100 to 100.
        seed: makes the choice repeatable; None draws a fresh one.
        max_tokens: most tokens to generate; None up to the end of the context.
        stop: texts that end the reply; they are not part of it.
        stop_ids: ids that end the reply, besides the model's own.
        ignore_eos: go on when the model ends its reply.

    Raises:
        SamplingError: a value is outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Checks every value; NumPy's numbers become Python's, which all that follows takes."""
        checked = {
            "temperature": _number("temperature", self.temperature, 0, 100),
            "top_k": _whole("top_k", self.top_k, 0, MAX_TOKENS),
            "top_p": _number("top_p", self.top_p, 0, 1, above_low=True),
            "min_p": _number("min_p", self.min_p, 0, 1),
            "typical_p": _number("typical_p", self.typical_p, 0, 1, above_low=True),
            "repetition_penalty": _number(
                "repetition_penalty", self.repetition_penalty, 0, 100, above_low=True
            ),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -2, 2),
            "logit_bias": _biases(self.logit_bias),
            "seed": None if self.seed is None else _whole("seed", self.seed, 0, MAX_SEED),
            "max_tokens": None
            if self.max_tokens is None
            else _whole("max_tokens", self.max_tokens, 1, MAX_TOKENS),
            "stop": check_stop(self.stop),
            "stop_ids": _ids("stop_ids", self.stop_ids),
        }
        if not isinstance(self.ignore_eos, bool):
            raise SamplingError(f"ignore_eos is {shown(self.ignore_eos)}; expected True or False")
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def check_stop(stop: object) -> tuple[str, ...]:
    """Returns stop texts, given as one text or several.

    Raises:
        SamplingError: they are something else, too many or too long.
    """
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise SamplingError(f"stop is {shown(stop)}; expected a text or a list of texts")
    if len(texts) > MAX_STOPS or any(not 0 < len(text) <= MAX_STOP_CHARACTERS for text in texts):
        raise SamplingError(
            f"stop has {len(texts)} texts of {sorted({len(text) for text in texts})} characters; "
            f"expected at most {MAX_STOPS} of 1 to {MAX_STOP_CHARACTERS} characters each"
        )
    return tuple(texts)


def _number(name: str, value: object, low: float, high: float, *, above_low: bool = False) -> float:
    wanted = f"a number {'above' if above_low else 'from'} {low} {'up ' if above_low else ''}"
    if not isinstance(value, Real) or isinstance(value, bool):
        raise SamplingError(f"{name} is {shown(value)}; expected {wanted}to {high}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high or (above_low and number == low):
        raise SamplingError(f"{name} is {shown(value)}; expected {wanted}to {high}")
    return number


def _whole(name: str, value: object, low: int, high: int) -> int:
    number = as_int(value)
    if number is None or not low <= number <= high:
        raise SamplingError(
            f"{name} is {shown(value)}; expected a whole number from {low} to {high}"
        )
    return number


def _ids(name: str, ids: object) -> tuple[int, ...]:
    refused = (str, bytes, bytearray, memoryview, Mapping)
    if isinstance(ids, refused) or not isinstance(ids, Iterable):
        raise SamplingError(f"{name} is {shown(ids)}; expected a list of token ids")
    try:
        return tuple(_whole(name, id_, 0, MAX_TOKENS) for id_ in ids)
    except TypeError as error:  # an array without dimensions
        raise SamplingError(f"{name} is {shown(ids)}; expected a list of token ids") from error


def _biases(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping) or len(bias) > MAX_BIASES:
        raise SamplingError(
            f"logit_bias must map token ids to numbers, at most {MAX_BIASES} of them"
        )
    return {
        _whole("logit_bias id", id_, 0, MAX_TOKENS): _number(
            f"logit_bias of id {id_}", value, -100, 100
        )
        for id_, value in bias.items()
    }
