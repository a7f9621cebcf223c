"""Calibration text: windows of token ids, cut from files of text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun.model.text.tokenizer import Tokenizer

WINDOWS, WINDOW_TOKENS = 64, 512
HELD_OUT_EVERY = 16  # of how many windows one is not fitted to, but measured on
_SEPARATOR = "<|endoftext|>"
_CHARACTERS_PER_TOKEN = 8  # more than texts have on the average
_PIECE = 8192
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Windows of text, and what of it is kept apart.

    Attributes:
        names: names of the files, without folders.
        windows: token ids int64 ``[windows, tokens]`` that weights are fitted to.
        held_out: ids ``[windows, tokens]`` of which weights see nothing; none if the text is short.
        held_out_bytes: UTF-8 bytes that these spell, but for the first of each window.
    """

    names: tuple[str, ...]
    windows: NDArray[np.int64]
    held_out: NDArray[np.int64]
    held_out_bytes: int

    @property
    def digest(self) -> str:
        """SHA-256 of the ids that weights are fitted to, as little-endian int64."""
        return hashlib.sha256(self.windows.astype("<i8").tobytes()).hexdigest()

    def as_dict(self) -> dict[str, object]:
        """What the manifest says of it."""
        return {
            "texts": list(self.names),
            "windows": len(self.windows),
            "window_tokens": self.windows.shape[1],
            "ids_sha256": self.digest,
        }


def read_calibration(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    windows: int = WINDOWS,
    tokens: int = WINDOW_TOKENS,
) -> CalibrationText:
    """Cuts as many windows as are asked for from files, equally many from each, evenly spread.

    Documents, which lines ``<|endoftext|>`` divide, follow each other, every one after the ids
    that a text begins with, as does every window. One window more in sixteen is held out.

    Args:
        files: UTF-8 texts.
        tokenizer: the model's.
        windows: how many to fit to; fewer if the texts are short.
        tokens: length of each.

    Raises:
        InputError: a file cannot be read, is not UTF-8, holds less than a window, or has
            characters that the tokenizer cannot spell.
    """
    wanted = windows + windows // HELD_OUT_EVERY
    shares = [(wanted + at) // len(files) for at in range(len(files))]
    start = _start(tokenizer)
    parts = [
        _spread(_ids(file, tokenizer, start, share * tokens), max(1, share), tokens, start, file)
        for file, share in zip(files, shares, strict=True)
    ]
    # In turns, so that what is held out is of all texts.
    longest = max(map(len, parts))
    every = np.array([part[at] for at in range(longest) for part in parts if at < len(part)])
    out = np.arange(len(every)) % (HELD_OUT_EVERY + 1) == HELD_OUT_EVERY
    held_out = every[out]
    spelled = {token: _spelled(tokenizer, token) for token in np.unique(held_out).tolist()}
    return CalibrationText(
        tuple(file.name for file in files),
        every[~out],
        held_out,
        sum(spelled[token] for token in held_out[:, 1:].ravel().tolist()),
    )


def _start(tokenizer: Tokenizer) -> list[int]:
    """What a text begins with: the bos ids, or the bos token that prompts do not get."""
    bos = tokenizer.token_id(tokenizer.special_token("bos"))
    return list(tokenizer.bos_ids) or ([] if bos is None else [bos])


def _spelled(tokenizer: Tokenizer, token: int) -> int:
    return 0 if token in tokenizer.hidden_ids else len(tokenizer.token_bytes(token))


def _ids(file: Path, tokenizer: Tokenizer, start: list[int], enough: int) -> list[int]:
    """Ids of a text, or of every so many of its pieces if that is certainly enough."""
    text = _read(file)
    pieces = _pieces(text)
    step = max(1, len(text) // (_CHARACTERS_PER_TOKEN * enough))
    ids: list[int] = []
    for first in range(step):
        for piece in pieces[first::step]:
            ids += start + _encoded(piece, tokenizer, file)
        if len(ids) >= enough:
            break
    return ids


def _encoded(piece: str, tokenizer: Tokenizer, file: Path) -> list[int]:
    ids = tokenizer.encode(piece, bos=False)
    unknown = tokenizer.token_id(tokenizer.special_token("unk") or "<unk>")
    if unknown is not None and unknown in ids:
        raise InputError(
            f"the tokenizer has no tokens for some characters of {file}, near "
            f"{piece[:40]!r}; choose text that the model can read"
        )
    return ids


def _pieces(text: str) -> list[str]:
    """Documents without outer space, long ones cut between lines where that is possible."""
    pieces: list[str] = []
    for document in text.split(_SEPARATOR):
        rest = document.strip()
        while len(rest) > _PIECE:
            cut = rest.rfind("\n", _PIECE // 2, _PIECE) + 1 or _PIECE
            pieces.append(rest[:cut])
            rest = rest[cut:]
        if rest:
            pieces.append(rest)
    return pieces


def _spread(
    ids: list[int], count: int, tokens: int, start: list[int], file: Path
) -> list[NDArray[np.int64]]:
    """Windows from all over the ids, each after those that a text begins with."""
    step = tokens - len(start)
    whole = len(ids) // step
    if whole == 0:
        raise InputError(
            f"{file} has {len(ids)} tokens, less than one calibration window of {tokens}; give "
            "more text, or smaller windows with --calibration-tokens"
        )
    firsts = [at * whole // min(count, whole) * step for at in range(min(count, whole))]
    return [np.array(start + ids[first : first + step], np.int64) for first in firsts]


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise InputError(f"{file} is larger than {_MAX_BYTES} bytes; a part of it will do")
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 text (byte {error.start}): convert it, for example with iconv"
        ) from error
