"""What kernels declare of their arguments."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from numba.core.errors import TypingError

from edgerun.kernels.jit.compiler import compile_object
from edgerun.kernels.jit.declare import KERNELS, kernel
from edgerun.kernels.lang.argument_block import ArgumentBlock
from edgerun.kernels.lang.signature import ITEM_BYTES, signature
from edgerun.kernels.lang.word import set_word, word

TEXT = """rows:i64[1] x:f32[rows, heads, 2 * size; x_stride] x_stride bias?:i16[max(n, 3)]
    table:cache q:u8[-(-n // 4), 2] n heads"""


def test_names_and_kinds() -> None:
    declared = signature(TEXT)
    assert declared.names == ("rows", "x", "x_stride", "bias", "table", "q", "n", "heads")
    assert declared.memory == {"rows", "x", "bias", "q"}
    assert declared.optional == {"bias"}
    assert declared.cached == {"table"}
    assert declared.sizes == {"rows", "heads", "size", "x_stride", "n"}
    assert signature("").names == ()


def test_bytes() -> None:
    sizes = {"rows": 5, "heads": 3, "size": 4, "x_stride": 30, "n": 9}
    touched = signature(TEXT).touched(sizes)
    assert touched == {"rows": 8, "x": 4 * (4 * 30 + 24), "bias": 18, "q": 6}
    with pytest.raises(NameError, match="heads"):
        signature(TEXT).touched({name: 1 for name in sizes if name != "heads"})


@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 9),
    gap=st.integers(0, 4),
    kind=st.sampled_from(sorted(ITEM_BYTES)),
)
def test_bytes_of_rows_are_those_up_to_the_last_element(
    rows: int, width: int, gap: int, kind: str
) -> None:
    stride, item = width + gap, ITEM_BYTES[kind]
    places = np.arange(rows)[:, None] * stride + np.arange(width)
    declared = signature(f"x:{kind}[rows, width; stride] width stride")
    sizes = {"rows": rows, "width": width, "stride": stride}
    assert declared.touched(sizes) == {"x": (int(places.max()) + 1) * item}


@pytest.mark.parametrize(
    "text",
    [
        "x:f32[",
        "x:f32[]",
        "x:f32[a]b",
        "x,y",
        "x:f32[a.b]",
        "x:f32['a']",
        "x:f32[a[0]]",
        "x:[a]",
        "x:f16[a]",
        "x:f32",
        "x:cache[a]",
    ],
)
def test_what_is_not_a_declaration(text: str) -> None:
    with pytest.raises(ValueError, match=f"not a kernel's arguments: {re.escape(text)}"):
        signature(text)


def test_an_argument_is_declared_once() -> None:
    with pytest.raises(ValueError, match="an argument is declared twice: x y x"):
        signature("x y x")


@pytest.mark.parametrize("unknown", ["width", "x"])
def test_sizes_are_numbers_that_somebody_knows(unknown: str) -> None:
    with pytest.raises(ValueError, match=f"kernel broken: nothing says what {unknown} is"):

        @kernel("broken", f"x:f32[rows, count, lanes, {unknown}] count")
        def broken(lanes: int) -> Any: ...

    assert "broken" not in KERNELS


def compiled(body: Any) -> bytes:
    return compile_object(body, (ArgumentBlock(("out", "count")), types.intp))


def test_bodies_read_arguments_by_name() -> None:
    assert compiled(lambda a, chunk: set_word(a.out, chunk, a.count))


def test_a_name_that_is_not_declared_does_not_compile() -> None:
    with pytest.raises(TypingError, match="Unknown attribute 'cuont'"):
        compiled(lambda a, chunk: set_word(a.out, chunk, a.cuont))


def test_an_argument_cannot_be_read_by_number() -> None:
    with pytest.raises(TypingError, match="ArgumentBlock"):
        compiled(lambda a, chunk: set_word(word(a, 0), chunk, 1))
