"""Any faults at any tokens: a stand-in for a GPU that dies or refuses changes no bit.

Weights that change there are found by samples alone, so they are not among these faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from edgerun.offload.sharing.session import Session
from edgerun.offload.standin import StandinBackend
from tests.offload.test_standin import SOME, confuse, kill, tokens
from tests.support.sharing import TOKENS, attract, session_of

Faults: TypeAlias = dict[int, Callable[[Session], object]]
COUNT = 200
FAULTS = (kill, confuse)
FORMS = (("olmoe", "int4"), ("gpt_oss", "int4"), ("qwen2_moe", "int4"), ("mixtral", "ternary"))
DEVICES = ("memory=8M", SOME, "memory=64K,link=20M,latency=1ms")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_fault_changes_a_bit() -> None:
    draw, struck = random.Random(200), 0
    while struck < COUNT:
        form, device = draw.choice(FORMS), draw.choice(DEVICES)
        at: Faults = {token: draw.choice(FAULTS) for token in draw.sample(range(TOKENS), 4)}

        def strike(backend: StandinBackend, token: int, at: Faults = at) -> None:
            nonlocal struck
            attract(backend)
            if token in at and not session_of(backend).failure:  # or it is used no more
                at[token](session_of(backend))
                struck += 1

        np.testing.assert_array_equal(tokens(*form, device, strike), tokens(*form, None))
