"""Windows to train on and to watch; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun_export.calibrate.text import read_calibration, read_sample, tokenizer_of
from edgerun_export.checkpoint.base import Checkpoint

I64 = NDArray[np.int64]
WATCHED = 12  # windows that are held out, of all texts together


@dataclass(frozen=True, slots=True)
class Windows:
    """Token ids ``[windows, tokens]``.

    Attributes:
        fitted: those that weights are trained on, in an order that mixes the texts.
        held_out: those that only tell how training goes, a few of each text.
    """

    fitted: I64
    held_out: I64


def read_test(checkpoint: Checkpoint, file: Path, count: int, tokens: int) -> I64:
    """The windows that ``edgerun quality --text`` measures on."""
    return read_sample(file, tokenizer_of(checkpoint.tokenizer_files()), count, tokens).windows


def read_windows(
    checkpoint: Checkpoint, files: Sequence[Path], count: int, tokens: int, seed: int = 0
) -> Windows:
    """Cuts windows as ``edgerun export --calibrate`` does.

    Raises:
        InputError: a file cannot be read, or holds less than a window, or all texts are so short
            that no window is held out.
    """
    text = read_calibration(files, tokenizer_of(checkpoint.tokenizer_files()), count, tokens)
    share = -(-WATCHED // len(files))
    held_out = [sample.windows[:share] for sample in text.samples]
    order = np.random.default_rng(seed).permutation(len(text.windows))
    if not held_out:
        raise InputError(
            f"{len(text.windows)} windows are too few to hold one out, which tells how training "
            "goes; give more text, or ask for more or shorter windows"
        )
    return Windows(text.windows[order], np.concatenate(held_out))
