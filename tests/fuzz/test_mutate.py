"""Whatever a mutation has made, the next one goes on from it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fuzz.mutate.gguf_file import ARRAY, STRING, Entry, GgufFile, change_array, write

UINT32, FLOAT32 = 4, 6


@pytest.mark.parametrize("element", [UINT32, FLOAT32, STRING])
@pytest.mark.parametrize("value", [b"<0x60>", float("inf"), 3])
def test_an_array_whose_type_was_changed_is_changed_again(value: Any, element: int) -> None:
    for seed in range(50):
        entry = Entry(b"key", ARRAY, [value], element)
        change_array(entry, random.Random(seed))
        assert write(GgufFile(3, [entry], [], b"")).startswith(b"GGUF")
