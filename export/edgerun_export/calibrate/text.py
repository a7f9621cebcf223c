"""Calibration text: windows of token ids, cut from files of text."""

from __future__ import annotations

import filecmp
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError, UnsupportedError
from edgerun.model.text.tokenizer import Tokenizer
from edgerun_export.calibrate.rounding import Rounding

WINDOWS, WINDOW_TOKENS = 64, 512
HELD_OUT_EVERY = 16  # of how many windows one is not fitted to, but measured on
_SEPARATOR = "<|endoftext|>"
_CHARACTERS_PER_TOKEN = 4  # about as many as texts have
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Sample:
    """Text that is measured on.

    Attributes:
        name: of its file, without folders.
        windows: token ids int64 ``[windows, tokens]``.
        bytes: UTF-8 bytes that these spell, but for the first of each window.
        rounding: what is rounded besides weights where quantised ones are measured.
        begins: ids that a document begins with, which spell nothing and are not predicted.
    """

    name: str
    windows: NDArray[np.int64]
    bytes: int
    rounding: Rounding = Rounding()
    begins: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """How many are predicted."""
        return sum(len(predicting(window, self.begins)) for window in self.windows)


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Windows of text.

    Attributes:
        names: names of the files, without folders.
        windows: token ids int64 ``[windows, tokens]`` that weights are fitted to; may be none.
        samples: text of which weights see nothing.
    """

    names: tuple[str, ...]
    windows: NDArray[np.int64]
    samples: tuple[Sample, ...] = ()

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


def predicting(ids: NDArray[np.int64], begins: Sequence[int]) -> NDArray[np.int64]:
    """Places in ids ``[tokens]`` before those that are predicted: where no document begins."""
    return np.flatnonzero(~np.isin(ids[1:], begins))


def tokenizer_of(files: Mapping[str, bytes]) -> Tokenizer:
    """The tokenizer of a checkpoint's ``tokenizer_files``."""
    config = json.loads(files.get("tokenizer_config.json", b"{}"))
    return Tokenizer.from_json(files["tokenizer.json"].decode(), config)


def read_calibration(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    windows: int = WINDOWS,
    tokens: int = WINDOW_TOKENS,
) -> CalibrationText:
    """Cuts as many windows as are asked for from files, equally many from each, evenly spread.

    Documents, which lines ``<|endoftext|>`` divide, follow each other, every one after the ids
    that a text begins with. Windows begin with a document, or with a part of a long one after the
    same ids; of a text that has hardly as many, one begins where the last one ended. One window
    more in sixteen is held out, if that leaves any.

    Args:
        files: UTF-8 texts.
        tokenizer: the model's.
        windows: how many to fit to; fewer if the texts are short.
        tokens: length of each.

    Raises:
        InputError: a file cannot be read, is not UTF-8, holds less than a window, or has
            characters that the tokenizer cannot spell.
    """
    more = -(-windows // HELD_OUT_EVERY)
    shares = [(windows + more + at) // len(files) for at in range(len(files))]
    fewer = [(windows + at) // len(files) for at in range(len(files))]
    fitted: list[NDArray[np.int64]] = []
    samples: list[Sample] = []
    for file, share, least in zip(files, shares, fewer, strict=True):
        cut = _windows(file, tokenizer, max(1, share), tokens)
        out = np.arange(len(cut)) % (HELD_OUT_EVERY + 1) == HELD_OUT_EVERY // 2
        if out.any() and not out.all():
            samples.append(_sample(file, cut[out], tokenizer))
            cut = cut[~out]
        else:
            cut = cut[: max(1, least)]
        fitted.append(cut)
    names = tuple(file.name for file in files)
    return CalibrationText(names, np.concatenate(fitted), tuple(samples))


def check_has_text(texts: Sequence[Path], **amounts: int | None) -> None:
    """Checks that there is text where it is said how much of it is read.

    Args:
        texts: files.
        amounts: what was given, by the names of the options.

    Raises:
        UnsupportedError: there is none.
    """
    for name, amount in amounts.items():
        if amount is not None and not texts:
            raise UnsupportedError(
                f"--{name.replace('_', '-')} says how much text is read to fit weights to, and "
                "there is none; leave it out, or give text with --calibrate FILE"
            )


def check_unseen(measured: Sequence[Path], fitted: Sequence[Path]) -> None:
    """Checks that no file is to be measured on which weights are fitted to, nor a copy of it.

    Raises:
        InputError: one is.
    """
    for sample, calibration in product(measured, fitted):
        if _have_same_content(sample, calibration):
            raise InputError(
                f"--text {sample} holds the same as --calibrate {calibration}: weights would be "
                "measured on what they were fitted to, which flatters them; give another text to "
                "one of the two"
            )


def _have_same_content(first: Path, second: Path) -> bool:
    try:
        return filecmp.cmp(first, second, shallow=False)
    except OSError:  # whoever reads it will say so
        return False


def fewest_with_samples(texts: int) -> int:
    """How many windows ``read_calibration`` must be asked for to hold one out of the last text."""
    windows = 1
    while (windows + -(-windows // HELD_OUT_EVERY) + texts - 1) // texts <= HELD_OUT_EVERY // 2:
        windows += 1
    return windows


def read_sample(file: Path, tokenizer: Tokenizer, windows: int, tokens: int) -> Sample:
    """Cuts windows from all over a file, to measure on.

    Raises:
        InputError: as for ``read_calibration``.
    """
    return _sample(file, _windows(file, tokenizer, windows, tokens), tokenizer)


def _sample(file: Path, windows: NDArray[np.int64], tokenizer: Tokenizer) -> Sample:
    begins = tuple(_start(tokenizer))
    predicted = [window[1:][predicting(window, begins)] for window in windows]
    ids, counts = np.unique(np.concatenate(predicted), return_counts=True)
    spelled = [len(tokenizer.token_bytes(token)) for token in ids.tolist()]
    return Sample(file.name, windows, int(counts @ spelled), begins=begins)


def _windows(file: Path, tokenizer: Tokenizer, count: int, tokens: int) -> NDArray[np.int64]:
    """Ids ``[windows, tokens]``: each begins with a document or a part of one, from all over."""
    start = _start(tokenizer)
    if tokens <= len(start):
        raise InputError(
            f"windows of {tokens} tokens hold no more than what a document begins with; a model "
            "with so short a context cannot be calibrated or measured"
        )
    texts = _pieces(_read(file), _CHARACTERS_PER_TOKEN * tokens)

    def pieces(first: int) -> Iterator[tuple[bool, list[int]]]:
        rest = (texts[number] for number in range(first, len(texts)))
        return ((begins, _encoded(text, tokenizer, file)) for begins, text in rest)

    windows: list[list[int]] = []
    at = 0
    for window in range(count):
        at = max(at, window * len(texts) // count)
        ids = list[int]()
        for begins, piece in pieces(at):
            ids += (start if begins or not ids else []) + piece
            at += 1
            if len(ids) >= tokens:
                break
        if len(ids) < tokens:
            break
        windows.append(ids[:tokens])
    if len(windows) == count:
        return np.array(windows, np.int64)
    return _all_windows(file, pieces(0), start, count, tokens)


def _all_windows(
    file: Path,
    pieces: Iterable[tuple[bool, list[int]]],
    start: list[int],
    count: int,
    tokens: int,
) -> NDArray[np.int64]:
    """The same of a short text: windows one after the other, so that no end of a piece is lost."""
    windows: list[list[int]] = []
    ids = list[int]()
    for begins, piece in pieces:
        ids += (start if begins or not ids else []) + piece
        while len(ids) >= tokens:
            windows.append(ids[:tokens])
            rest = ids[tokens:]
            ids = start + rest if rest and rest[: len(start)] != start else rest
    if not windows:
        raise InputError(
            f"{file} has {len(ids)} tokens, less than one window of {tokens}; give more text, or "
            "smaller windows"
        )
    chosen = min(count, len(windows))
    return np.array([windows[at * len(windows) // chosen] for at in range(chosen)], np.int64)


def _start(tokenizer: Tokenizer) -> list[int]:
    """What a text begins with: the bos ids, or the bos token that prompts do not get."""
    bos = tokenizer.token_id(tokenizer.special_token("bos"))
    return list(tokenizer.bos_ids) or ([] if bos is None else [bos])


def _encoded(piece: str, tokenizer: Tokenizer, file: Path) -> list[int]:
    ids = tokenizer.encode(piece, bos=False)
    unknown = tokenizer.token_id(tokenizer.special_token("unk") or "<unk>")
    if unknown is not None and unknown in ids:
        raise InputError(
            f"the tokenizer has no tokens for some characters of {file}, near "
            f"{piece[:40]!r}; choose text that the model can read"
        )
    return ids


def _pieces(text: str, longest: int) -> list[tuple[bool, str]]:
    """Documents without outer space, long ones in parts; and whether a document begins there."""
    pieces: list[tuple[bool, str]] = []
    for document in map(str.strip, text.split(_SEPARATOR)):
        start = 0
        while start < len(document):
            stop = min(start + longest, len(document))
            if stop < len(document):
                stop = document.rfind("\n", start + longest // 2, stop) + 1 or stop
            pieces.append((start == 0, document[start:stop]))
            start = stop
    return pieces


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:  # it may be a pipe, which says nothing of its size
            data = opened.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise InputError(f"{file} is larger than {_MAX_BYTES} bytes; a part of it will do")
        return data.decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 text (byte {error.start}): convert it, for example with iconv"
        ) from error
