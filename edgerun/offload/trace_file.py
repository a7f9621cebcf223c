"""Which experts every token of every layer went to, in a file; docs/traces.md has the format."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError, UnsupportedError
from edgerun.files.output import write_output
from edgerun.files.plain import read_plain
from edgerun.values import shown

FORMAT = "edgerun-trace"
FORMAT_VERSION = 1
NO_EXPERT = 0xFFFF  # in the place of a choice that a token did not make
CHOICE = np.dtype([("expert", "<u2"), ("weight", "<f2")])
MAX_BYTES = 1 << 32
MAX_HEADER_BYTES = 1 << 16


@dataclass(frozen=True, eq=False)
class Trace:
    """The choices of routers, token by token.

    Attributes:
        model: digest of the bundle that made them, or what else they come from.
        layers: numbers of the layers with experts, ascending.
        experts: of a layer; of the one with most, where layers differ.
        prompt_tokens: how many of the first tokens are the prompt's.
        choices: of type ``CHOICE``, ``[tokens, layers, top_k]``; those of a token by falling
            weight, then ``NO_EXPERT`` with weight 0 where there are fewer.

    Raises:
        InputError: these do not belong together.
    """

    model: str
    layers: tuple[int, ...]
    experts: int
    prompt_tokens: int
    choices: NDArray[Any]

    def __post_init__(self) -> None:
        """Checks all of it."""
        problem = _problem(self)
        if problem:
            raise InputError(f"no trace of experts can be made of this: {problem}")

    @property
    def tokens(self) -> int:
        """Tokens that went through the model."""
        return len(self.choices)

    @property
    def top_k(self) -> int:
        """Most experts that a token goes to in a layer."""
        return int(self.choices.shape[2])


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line; ``sha256`` is that of the file with an empty one."""

    format: str
    format_version: int
    model: str
    layers: tuple[int, ...]
    experts: int
    top_k: int
    tokens: int
    prompt_tokens: int
    sha256: str = ""


def write_trace(path: Path, trace: Trace) -> int:
    """Writes a trace, all or nothing; an existing file is replaced.

    Returns:
        how many bytes it takes.

    Raises:
        InputError: something else than a file has this name.
        StorageError: it cannot be written.
    """
    header = _Header(
        FORMAT,
        FORMAT_VERSION,
        trace.model,
        trace.layers,
        trace.experts,
        trace.top_k,
        trace.tokens,
        trace.prompt_tokens,
    )
    body = trace.choices.astype(CHOICE).tobytes()
    header = msgspec.structs.replace(header, sha256=_digest(header, body))
    data = msgspec.json.encode(header) + b"\n" + body
    write_output(path, data, durable=True)
    return len(data)


def read_trace(path: Path, model: str | None = None) -> Trace:
    """Reads a trace.

    Args:
        path: of the file.
        model: digest of the model that it must be of; None if any will do.

    Raises:
        InputError: there is none, or it is cut off, altered, or another model's.
        UnsupportedError: it is of another version.
    """
    try:
        data = read_plain(path, MAX_BYTES)
    except (OSError, ValueError) as error:  # a null character
        said = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read the trace {path}: {said}") from error
    header, body = _parse(path, data)
    if header.sha256 != _digest(header, body):
        raise InputError(f"the trace {path} was altered: its digest does not match; make it again")
    if model is not None and header.model != model:
        raise InputError(
            f"the trace {path} is another model's (digest {header.model[:12]}, expected "
            f"{model[:12]}): make one with `edgerun trace`"
        )
    choices = np.frombuffer(body, CHOICE)
    choices = choices.reshape(header.tokens, len(header.layers), header.top_k)
    try:
        return Trace(header.model, header.layers, header.experts, header.prompt_tokens, choices)
    except InputError as error:
        raise InputError(f"the trace {path} is broken: {error}") from error


def _parse(path: Path, data: bytes) -> tuple[_Header, memoryview]:
    """The header and the choices, of the length that the header says."""
    line, newline, _ = data[:MAX_HEADER_BYTES].partition(b"\n")
    fields = _fields(line) if newline else {}
    if fields.get("format") != FORMAT:
        raise InputError(f"{path} is no trace of experts: `edgerun trace` makes one")
    if fields.get("format_version") != FORMAT_VERSION:
        raise UnsupportedError(
            f"the trace {path} has version {shown(fields.get('format_version'))}; expected "
            f"{FORMAT_VERSION}"
        )
    try:
        header = msgspec.convert(fields, _Header)
    except msgspec.ValidationError as error:
        raise InputError(f"the header of the trace {path} is broken: {error}") from error
    body = memoryview(data)[len(line) + 1 :]  # which may be gigabytes
    sizes = header.tokens, len(header.layers), header.top_k
    expected = sizes[0] * sizes[1] * sizes[2] * CHOICE.itemsize
    if min(sizes) < 1 or len(body) != expected:
        raise InputError(
            f"the trace {path} has {len(body)} bytes of choices and its header speaks of "
            f"{expected}: it was cut off or altered; make it again"
        )
    return header, body


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _digest(header: _Header, body: bytes | memoryview) -> str:
    unsigned = msgspec.json.encode(msgspec.structs.replace(header, sha256=""))
    digest = hashlib.sha256(unsigned + b"\n")
    digest.update(body)
    return digest.hexdigest()


def _problem(trace: Trace) -> str:
    """What is wrong with a trace; nothing if all is well."""
    choices, layers = trace.choices, trace.layers
    if choices.dtype != CHOICE or choices.ndim != 3 or 0 in choices.shape:
        return f"its choices are {choices.dtype} {list(choices.shape)}"
    if len(layers) != choices.shape[1] or list(layers) != sorted({*layers}) or layers[0] < 0:
        return f"its layers are {list(layers)!r:.60}, with choices of {choices.shape[1]}"
    if not trace.top_k <= trace.experts < NO_EXPERT:
        return f"a token goes to {trace.top_k} of {trace.experts} experts"
    if not 0 <= trace.prompt_tokens <= trace.tokens:
        return f"{trace.prompt_tokens} of {trace.tokens} tokens are the prompt's"
    return _problem_of_choices(trace)


def _problem_of_choices(trace: Trace) -> str:
    experts, weights = trace.choices["expert"], trace.choices["weight"]
    is_made = experts != NO_EXPERT
    if not is_made.any():
        return "no token goes to any expert"
    if int(experts[is_made].max()) >= trace.experts:
        return f"a token goes to expert {experts[is_made].max()} of {trace.experts}"
    ordered = np.sort(experts, axis=2)
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != NO_EXPERT)).any():
        return "a token goes to an expert twice"
    if not np.isfinite(weights).all() or weights[~is_made].any():
        return "a weight is no finite number, or belongs to no expert"
    return ""
