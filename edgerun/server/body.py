"""Bodies of requests: JSON of a bounded size, and what its fields mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from edgerun.engine.chooser.params import all_options
from edgerun.engine.sampling.logit_bias import MAX_BIASES
from edgerun.files.json_parts import has_more_parts
from edgerun.server.problems import Problem
from edgerun.values import shown, suggestion, whole_number

T = TypeVar("T", bound=msgspec.Struct)

BODY_S = 30.0  # for all of a body to come
LEAST_BODY_BYTES = 1 << 20
BODY_BYTES_PER_TOKEN = 24  # six for every byte of a long word where all is escaped
LEAST_PARTS = LEAST_BODY_BYTES // 2  # which is all that so short a body may have
PARTS_PER_TOKEN = 2
LONGEST_PARAM = 100  # characters of a name that an answer repeats as it is
LEAST_TOP_P = 1e-9  # less than the share of the likeliest token, of however many
SEEDS = 1 << 64
HALF_A_PAIR = re.compile(  # an escape of the first half, and something else behind it
    rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?:[^\\]|\\[^u])", re.DOTALL
)
PLACE = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(.*)`")
OF_ANY_NAME = "[...]"  # stands for an item of an object in such a place


class Sent(NamedTuple):
    """An argument of the library for which the API has another name, or another form.

    Attributes:
        value: of the argument.
        field: of the body, by its path.
    """

    value: Any
    field: str


async def read_json(request: Request, most_bytes: int) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        Problem: there is none, or it is too large or too slow, or has too many parts.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            f"the body is {shown(kind or 'of no type')}; expected Content-Type: application/json",
        )
    try:
        with anyio.fail_after(BODY_S):
            body = await _read(request, most_bytes)
    except TimeoutError:
        raise Problem(408, f"the body did not come within {BODY_S:.0f} seconds") from None
    except ClientDisconnect:
        raise Problem(400, "the body ended early") from None
    most_parts = max(LEAST_PARTS, most_bytes // BODY_BYTES_PER_TOKEN * PARTS_PER_TOKEN)
    if has_more_parts(body, most_parts):
        raise Problem(413, f"the body has more than {most_parts} lists, objects and items")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Problem(400, _why_no_json(body, error), "invalid_json") from error
    if not isinstance(value, dict):
        raise Problem(400, f"the body is {shown(value)}; expected a JSON object", "invalid_json")
    return value


def _why_no_json(body: bytes, error: Exception) -> str:
    """What is wrong with a body; the parser calls some cut off that are not."""
    if not body.strip():
        return "the body is empty; expected a JSON object"
    reason = "lists in lists, too deep" if isinstance(error, RecursionError) else str(error)
    if "surrogate" in reason or ("truncated" in reason and HALF_A_PAIR.search(body)):
        reason = "a text holds half of a pair of surrogates, which is no character"
    return f"the body is no JSON: {reason}"


def split(
    body: Mapping[str, Any], kind: type[T], special: frozenset[str] = frozenset()
) -> tuple[T, dict[str, Any]]:
    """Splits a body into fields of a kind, checked, and sampling options, which are not yet.

    Args:
        body: fields by name; null means that one is left out.
        kind: of the fields that are no sampling options.
        special: fields of ``kind`` that have the name of a sampling option.

    Raises:
        Problem: there is no such field, or a value has another type.
    """
    options = {entry.name for entry in all_options()} - special
    names = set(kind.__struct_fields__)
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in names | options:
            near = suggestion(name, sorted(names | options))
            param = name if len(name) <= LONGEST_PARAM else None
            raise Problem(400, f"there is no field {shown(name)}{near}", "unknown_field", param)
    own = {name: value for name, value in given.items() if name in names}
    try:
        fields = msgspec.convert(own, kind)
    except msgspec.ValidationError as error:
        raise _mismatch(str(error)) from error
    return fields, {name: value for name, value in given.items() if name not in names}


def _mismatch(message: str) -> Problem:
    """What a caller is told where a field is missing, or has a value of another type."""
    place = ""
    if match := PLACE.fullmatch(message):
        message, place = match[1], match[2]
    if match := MISSING.fullmatch(message):
        param = f"{place}.{match[1]}" if place else match[1]
        return Problem(400, f"{param} is missing, and has to be there", "invalid_value", param)
    message = f"{place or 'body'}: {message[:1].lower()}{message[1:]}"
    field, _, _ = place.partition(OF_ANY_NAME)
    return Problem(400, message, "invalid_value", field or None)


def with_sent(
    sampling: Mapping[str, Any], sent: Mapping[str, Sent]
) -> tuple[dict[str, Any], dict[str, str]]:
    """All sampling options, and the field of each of them.

    Args:
        sampling: those whose fields have their names.
        sent: others.
    """
    values = {**sampling, **{name: each.value for name, each in sent.items()}}
    fields = {name: sent[name].field if name in sent else name for name in values}
    return values, fields


def as_options(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling options as the library has them, where the APIs write more, or otherwise.

    Ids in ``logit_bias`` are numbers, which JSON cannot have as names. A ``top_p`` of 0 keeps the
    likeliest token, and a seed has 64 bits with a sign or without.

    Raises:
        Problem: an id is no number.
    """
    options, top_p, seed = dict(sampling), sampling.get("top_p"), sampling.get("seed")
    if isinstance(top_p, int | float) and not isinstance(top_p, bool) and top_p == 0:
        options["top_p"] = LEAST_TOP_P
    if isinstance(seed, int) and -SEEDS // 2 <= seed < 0:
        options["seed"] = seed + SEEDS
    bias = sampling.get("logit_bias")
    if isinstance(bias, dict) and len(bias) <= MAX_BIASES:  # others are refused later
        options["logit_bias"] = _by_id(bias)
    return options


def _by_id(bias: Mapping[str, Any]) -> dict[int, Any]:
    ids: dict[int, Any] = {}
    for key, value in bias.items():
        id_ = whole_number(key)
        if id_ is None or str(id_) != key:  # of "7" and "07" it would be either
            raise Problem(
                400,
                f"logit_bias has the name {shown(key)}; expected the id of a token, as '7' is",
                "invalid_value",
                "logit_bias",
            )
        ids[id_] = value
    return ids


async def _read(request: Request, most_bytes: int) -> bytes:
    too_large = Problem(413, f"the body is larger than {most_bytes} bytes", "too_large")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > most_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise too_large
    return bytes(body)
