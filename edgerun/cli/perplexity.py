"""``edgerun perplexity``: how well a model predicts a text file."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options

if TYPE_CHECKING:
    from edgerun.llm.scoring import Score

MAX_FILE_BYTES = 1 << 30
CHUNK_ROWS = 64  # logits of every row are kept for one chunk

EXAMPLES = options.examples(
    "edgerun perplexity ./my-model text.txt",
    "edgerun perplexity ./my-model texts.txt --separator '<|endoftext|>' --json",
)


@options.with_loading
def perplexity(
    model: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    separator: Annotated[
        str | None,
        typer.Option("--separator", help="Line between texts that are scored separately."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Score only so many texts.", min=1)
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", help="Tokens of one run; the context if left out.")
    ] = None,
    *,
    loading: dict[str, Any],
    as_json: options.Json = False,
) -> None:
    from edgerun.cli.screen.progress import progress_line
    from edgerun.errors import InputError
    from edgerun.llm.scoring import Score, score_texts, split_documents

    texts = itertools.islice(split_documents(_read(file), separator), limit)
    with options.load(model, chunk_rows=CHUNK_ROWS, **loading) as llm:
        began = time.perf_counter()
        score = Score()
        with progress_line() as show:
            for score in score_texts(llm, texts, window):
                show(f"{score.documents} texts, {score.bits_per_byte:.4f} bits per byte")
        if not score.tokens:
            raise InputError(
                f"{file} holds too little text to score: expected a text of two tokens or more"
            )
        size = llm.model.context if window is None else window
        figures = summary(score, size, time.perf_counter() - began)
    print(json.dumps(figures) if as_json else _as_text(figures))


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
        f"({figures['tokens']} tokens, {figures['bytes']} bytes, {figures['documents']} texts, "
        f"windows of {figures['window_tokens']} tokens)"
    )


def _read(file: Path) -> str:
    from edgerun.errors import InputError

    try:
        with file.open("rb") as opened:  # of a device or pipe nobody knows the size before
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 text (byte {error.start}): convert it, for example with iconv"
        ) from error
    if not text.strip():
        raise InputError(f"{file} holds no text")
    return text
