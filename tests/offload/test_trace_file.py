"""Traces come back as they were written; a file that is none, or not whole, is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import InputError, StorageError, UnsupportedError
from edgerun.offload.trace_file import (
    CHOICE,
    NO_EXPERT,
    Trace,
    read_trace,
    write_trace,
)


def trace(tokens: int = 5, layers: int = 2, experts: int = 8, top_k: int = 3) -> Trace:
    rng = np.random.default_rng(tokens)
    choices = np.zeros((tokens, layers, top_k), CHOICE)
    choices["expert"] = rng.permuted(np.tile(np.arange(experts), (tokens, layers, 1)), axis=2)[
        ..., :top_k
    ]
    choices["weight"] = rng.uniform(0.1, 1, choices.shape)
    return Trace("ab" * 32, tuple(range(1, layers + 1)), experts, min(3, tokens), choices)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_trace(tmp_path / "a.trace", trace())
    return tmp_path / "a.trace"


def edit_header(path: Path, change: Callable[[dict[str, Any]], object], *, sign: bool) -> None:
    """Changes the header; ``sign`` makes the digest agree, by the rule of docs/traces.md."""
    line, _, body = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    change(header)
    if sign:
        unsigned = json.dumps({**header, "sha256": ""}, separators=(",", ":")).encode()
        header["sha256"] = hashlib.sha256(unsigned + b"\n" + body).hexdigest()
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)


@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 70))
def test_a_trace_comes_back(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, layers: int, experts: int
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t"
    written = trace(tokens, layers, experts, min(3, experts))
    nbytes = write_trace(path, written)
    back = read_trace(path, written.model)
    assert np.array_equal(back.choices, written.choices)
    for name in ("model", "layers", "experts", "prompt_tokens", "tokens", "top_k"):
        assert getattr(back, name) == getattr(written, name)
    assert path.stat().st_size == nbytes
    assert nbytes - len(path.read_bytes().split(b"\n")[0]) - 1 == 4 * written.choices.size


def test_the_documented_way_to_read_it(path: Path) -> None:
    """As docs/traces.md shows it, without edgerun."""
    with open(path, "rb") as file:
        header = json.loads(file.readline())
        choices = np.frombuffer(file.read(), [("expert", "<u2"), ("weight", "<f2")])
    choices = choices.reshape(header["tokens"], len(header["layers"]), header["top_k"])
    assert np.array_equal(choices, trace().choices)
    assert (header["format"], header["format_version"]) == ("edgerun-trace", 1)
    assert (header["experts"], header["prompt_tokens"], header["layers"]) == (8, 3, [1, 2])


def test_a_header_of_another_writer_is_read(path: Path) -> None:
    """With spaces, and a digest that was made by the documented rule."""
    edit_header(path, lambda header: header.update(model="other"), sign=True)
    assert read_trace(path).model == "other"


def test_a_trace_of_another_model_is_refused(path: Path) -> None:
    for other in ("cd", "00"):
        message = rf"another model's \(digest abababababab, expected {other * 6}"
        with pytest.raises(InputError, match=message):
            read_trace(path, other * 32)
    assert read_trace(path, "ab" * 32).model == "ab" * 32


def test_every_byte_that_is_cut_off_is_missed(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(InputError, match="no trace of experts|was cut off or altered"):
            read_trace(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(InputError, match="121 bytes of choices and its header speaks of 120"):
        read_trace(path)


def test_every_bit_that_flips_is_found(path: Path) -> None:
    data = path.read_bytes()
    for place in range(len(data)):
        for bit in (0, 5):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            path.write_bytes(bytes(changed))
            with pytest.raises(InputError):
                read_trace(path)


def test_another_version_is_refused(path: Path) -> None:
    edit_header(path, lambda header: header.update(format_version=2), sign=True)
    with pytest.raises(UnsupportedError, match="has version 2; expected 1"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers", [2, 1], r"its layers are \[2, 1\]"),
        ("layers", [1, 1], r"its layers are \[1, 1\]"),
        ("layers", [-1, 1], r"its layers are \[-1, 1\]"),
        ("experts", 2, "goes to 3 of 2 experts"),
        ("experts", 5, r"goes to expert [567] of 5"),
        ("experts", NO_EXPERT, "goes to 3 of 65535 experts"),
        ("experts", 1 << 16, "goes to 3 of 65536 experts"),
        ("prompt_tokens", 6, "6 of 5 tokens are the prompt's"),
        ("prompt_tokens", -1, "-1 of 5 tokens are the prompt's"),
        ("tokens", 0, "its header speaks of 0"),
        ("tokens", -5, "its header speaks of -120"),
        ("tokens", "5", "Expected `int`"),
        ("more", 1, "unknown field `more`"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(
    path: Path, name: str, value: object, message: str
) -> None:
    edit_header(path, lambda header: header.update({name: value}), sign=True)
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_a_file_that_contradicts_itself_is_named(path: Path) -> None:
    edit_header(path, lambda header: header.update(experts=2), sign=True)
    with pytest.raises(InputError, match=rf"the trace {path} is broken: .* 3 of 2 experts"):
        read_trace(path)


def test_sizes_below_zero_are_refused_even_if_their_product_is_right(path: Path) -> None:
    edit_header(path, lambda header: header.update(tokens=-5, top_k=-3), sign=True)
    with pytest.raises(InputError, match="was cut off or altered"):
        read_trace(path)


def test_a_header_without_a_field_is_refused(path: Path) -> None:
    edit_header(path, lambda header: header.pop("top_k"), sign=True)
    with pytest.raises(InputError, match=r"header of the trace .* is broken: .*top_k"):
        read_trace(path)


NO_TRACES = [b"", b"\n", b"[]\n", b"1\n", b"{}\n", b"\xff\n", b"x" * 70000]
NO_TRACES += [b'{"format": "\xff"}\n', b"[" * 60000 + b"\n"]


@pytest.mark.parametrize("content", NO_TRACES)
def test_what_is_no_trace_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no trace of experts: `edgerun trace` makes one"):
        read_trace(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "missing", Path("nul\0l")):
        with pytest.raises(InputError, match="cannot read the trace"):
            read_trace(wrong)


@pytest.mark.parametrize(
    ("expert", "weight", "message"),
    [
        (8, 0.5, "goes to expert 8 of 8"),
        (None, 0.5, "goes to an expert twice"),
        (NO_EXPERT, 0.5, "no finite number, or belongs to no expert"),
        (7, np.nan, "no finite number"),
        (7, np.inf, "no finite number"),
    ],
)
def test_choices_that_no_router_makes_are_refused(
    expert: int | None, weight: float, message: str
) -> None:
    choices = trace().choices
    choices["expert"][0, 0] = [1, 2, 2 if expert is None else expert]
    choices["weight"][0, 0, 2] = weight
    with pytest.raises(InputError, match=message):
        replace(trace(), choices=choices)


def test_a_token_may_make_fewer_choices() -> None:
    choices = trace().choices
    choices["expert"][0, 0, 1:] = NO_EXPERT
    choices["weight"][0, 0, 1:] = 0
    assert replace(trace(), choices=choices).top_k == 3
    choices["expert"], choices["weight"] = NO_EXPERT, 0
    with pytest.raises(InputError, match="no token goes to any expert"):
        replace(trace(), choices=choices)


def test_choices_of_another_type_are_refused() -> None:
    good = trace().choices
    for choices in (good[0], good[None], good["expert"], good[:0], good[..., :0]):
        with pytest.raises(InputError, match="its choices are"):
            replace(trace(), choices=choices)


@pytest.mark.parametrize("layers", [(), (1,), (1, 2, 3)])
def test_choices_of_other_layers_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="its layers are .* with choices of 2"):
        replace(trace(), layers=layers)


def test_counts_from_0_on_are_possible() -> None:
    assert replace(trace(), layers=(0, 1)).layers == (0, 1)
    for count in (0, 5):
        assert replace(trace(), prompt_tokens=count).prompt_tokens == count
    assert replace(trace(), experts=NO_EXPERT - 1).experts == NO_EXPERT - 1


def test_where_a_trace_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgerun.files.output.write_atomically", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_trace(path, trace())


def test_an_interrupted_write_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgerun.files.private.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_trace(path, trace(9))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
