"""Makes a screen from the hidden states of the first tokens, if it promises to be of use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.screen_program import ScreenProgram
from edgerun.backends.cpu.screen_weights import (
    Screen,
    dequantised,
    make_screen,
    useful_directions,
)
from edgerun.formats.base import PackedWeight

F32 = NDArray[np.float32]

HELD_OUT = 32  # states on which the promise is judged
SAMPLE_ROWS = 4096
LIMIT = 0.25  # share of the rows beyond which the full head is cheaper


@dataclass(frozen=True, slots=True)
class ScreenPolicy:
    """When to build a screen and when to give it up.

    Attributes:
        states: hidden states to choose directions by, more than ``HELD_OUT``.
        background: build while decoding goes on.
        trial: screened tokens after which the screen must pay; 0 never asks.
        min_gain: share of a decode step that it must save.
    """

    states: int = 512
    background: bool = True
    trial: int = 32
    min_gain: float = 0.05


class ScreenBuilder:
    """Collects states, judges a sample of the rows, then builds.

    Attributes:
        built: the screen, once there is one.
        refusal: why there will be none, or empty.
    """

    def __init__(
        self,
        weight: PackedWeight,
        compile_screen: Callable[[Screen], ScreenProgram],
        policy: ScreenPolicy,
    ) -> None:
        """Takes a head, int8 ``[N, K]``, and what binds a screen to kernels."""
        self.built: ScreenProgram | None = None
        self.refusal = ""
        self._weight, self._compile, self._policy = weight, compile_screen, policy
        self._states: list[F32] = []
        self._least: list[float] = []
        self._thread: threading.Thread | None = None

    def add(self, state: F32, logits: F32, count: int) -> None:
        """Notes a state ``[K]`` and its logits ``[N]`` of which ``count`` mattered."""
        if self._thread is not None or not np.isfinite(state).all():
            return
        self._states.append(state)
        if len(self._states) > self._policy.states - HELD_OUT:
            count = min(count, len(logits))
            self._least.append(float(np.partition(logits, -count)[-count]))
        if len(self._states) >= self._policy.states:
            self._thread = threading.Thread(target=self._build, daemon=True, name="edgerun-screen")
            self._thread.start()
            if not self._policy.background:
                self._thread.join()

    def close(self) -> None:
        """Waits for what is under way."""
        if self._thread is not None:
            self._thread.join()

    def _build(self) -> None:
        weight, states = self._weight, np.array(self._states)
        self._states.clear()
        directions = useful_directions(weight)
        share = expected_share(weight, states, np.array(self._least, np.float32), directions)
        if share > LIMIT:
            self.refusal = f"{share:.0%} of its rows would have to be computed exactly"
            return
        self.built = self._compile(make_screen(weight, states, directions))


def expected_share(weight: PackedWeight, states: F32, least: F32, directions: int) -> float:
    """Share of the rows that a screen would leave to be computed, from a sample of both.

    Args:
        weight: the head.
        states: float32 ``[s, K]``; the last ones are tried with a screen made from the others.
        least: for each of the last states, the smallest logit that mattered.
        directions: of the screen.
    """
    every = -(-weight.shape[0] // SAMPLE_ROWS)
    codes, scales = weight.codes[::every], weight.scales[::every]
    sample = PackedWeight(weight.format, (len(codes), weight.shape[1]), weight.block, codes, scales)
    tried = states[len(states) - len(least) :]
    bound = make_screen(sample, states[: len(states) - len(least)], directions).bound
    reach = np.array([bound.project(state)[1] for state in tried])
    # The scores differ little from the exact values, compared with their bounds.
    highest = dequantised(sample) @ tried.T + np.outer(bound.spread, reach)
    return float((highest >= least).mean())
