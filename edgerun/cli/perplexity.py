"""``edgerun perplexity``: how well a model predicts a text file."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from edgerun.cli import options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgerun.llm.llm import LLM
    from edgerun.llm.scoring import Score
    from edgerun.state import TakeLogits

MAX_FILE_BYTES = 1 << 30
CHUNK_ROWS = 64  # logits of every row are kept for one chunk

EXAMPLES = options.examples(
    "edgerun perplexity ./my-model text.txt",
    "edgerun perplexity ./my-model texts.txt --separator '<|endoftext|>' --json",
)


@options.with_loading
def perplexity(
    model: Annotated[Path, typer.Argument(help=options.ANY_MODEL)],
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    separator: Annotated[
        str | None,
        typer.Option("--separator", help="Line between texts that are scored separately."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Score only so many texts.", min=1)
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", help="Tokens of one run. [default: the context]")
    ] = None,
    *,
    loading: dict[str, Any],
    as_json: options.Json = False,
) -> None:
    from edgerun.cli.screen.progress import progress_line
    from edgerun.errors import InputError
    from edgerun.llm.scoring import Score, has_separator, score_texts, split_documents

    text = _read(file)
    if separator is not None and not has_separator(text, separator):
        raise InputError(
            f"--separator is {separator!r}, and no line of {file} equals it: expected at least "
            "one, or leave it out to score the file as one text"
        )
    texts = itertools.islice(split_documents(text, separator), limit)
    with options.load(model, chunk_rows=CHUNK_ROWS, **loading) as llm:
        began = time.perf_counter()
        score = Score()
        with progress_line() as show:
            watched = _Watched(llm, show)
            for score in score_texts(cast("LLM", watched), texts, window):
                watched.note = f"{_counted(score.documents, 'text')}, "
        if not score.tokens:
            raise InputError(
                f"{file} holds too little text to score: expected a text of two tokens or more"
            )
        size = llm.model.context if window is None else window
        figures = summary(score, size, time.perf_counter() - began)
    print(json.dumps(figures) if as_json else _as_text(figures))


class _Watched:
    """A model that shows how far scoring is; one window of a long context takes a minute."""

    def __init__(self, llm: LLM, show: Callable[[str], None]) -> None:
        self.note = ""  # of whole texts
        self._llm, self._show = llm, show
        self._windows = self._tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def take_logits(self, ids: Sequence[int], take: TakeLogits) -> None:
        self._windows += 1

        def counted(block: NDArray[np.float32]) -> None:
            take(block)
            self._tokens += len(block)
            self._tell()

        self._tell()
        self._llm.take_logits(ids, counted)

    def _tell(self) -> None:
        self._show(f"{self.note}window {self._windows}, {self._tokens:,} tokens done")


def summary(score: Score, window: int, seconds: float) -> dict[str, Any]:
    """What ``--json`` prints; the names are a contract."""
    return {
        "bits_per_byte": round(score.bits_per_byte, 6),
        "perplexity": round(score.perplexity, 6),
        "tokens": score.tokens,
        "bytes": score.bytes,
        "documents": score.documents,
        "windows": score.windows,
        "window_tokens": window,
        "seconds": round(seconds, 3),
    }


def _as_text(figures: dict[str, Any]) -> str:
    return (
        f"{figures['bits_per_byte']:.4f} bits per byte, "
        f"perplexity {figures['perplexity']:.4f} a token "
        f"({_counted(figures['tokens'], 'token')}, {_counted(figures['bytes'], 'byte')}, "
        f"{_counted(figures['documents'], 'text')}, "
        f"windows of {figures['window_tokens']} tokens)"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _read(file: Path) -> str:
    from edgerun.errors import InputError

    try:
        with file.open("rb") as opened:  # of a device or pipe nobody knows the size before
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
        text = content.decode("utf-8")
    except IsADirectoryError as error:
        raise InputError(f"{file} is a folder, not a text; the model comes before it") from error
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 text (byte {error.start}): convert it, for example with iconv"
        ) from error
    if not text.strip():
        raise InputError(f"{file} holds no text")
    return text
