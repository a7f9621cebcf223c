"""How well a model predicts a text: bits per byte and perplexity.

Bits per byte is ``sum(-log2 p(token)) / bytes of UTF-8`` and does not depend on the vocabulary;
perplexity is ``exp(mean(-ln p(token)))`` a token and compares only models that share one. A text
longer than the window is cut into consecutive windows without overlap; every window starts from
the bos token (even if prompts do not get one), so its first tokens have little to go by. A
vocabulary without a bos token leaves the first token of each window out of the sums, with its
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BackendError, InputError
from edgerun.llm.arguments import check_text, check_texts
from edgerun.llm.llm import LLM
from edgerun.values import as_int, shown


@dataclass(slots=True)
class Score:
    """Sums over some texts.

    Attributes:
        nats: sum of ``-ln p`` over scored tokens.
        tokens: scored tokens.
        bytes: UTF-8 bytes of the text that they spell.
        windows: model runs from a bos token.
        documents: texts.
    """

    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0
    windows: int = 0
    documents: int = 0

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte; NaN for no text."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def perplexity(self) -> float:
        """Perplexity a token; NaN for no text."""
        return math.exp(min(self.nats / self.tokens, 700)) if self.tokens else math.nan


def has_separator(text: str, separator: str) -> bool:
    """Whether a line of a text equals ``separator``."""
    return any(line.rstrip("\r") == separator for line in text.split("\n"))


def split_documents(text: str, separator: str | None) -> Iterator[str]:
    """Yields the parts of a text between lines that equal ``separator``, without outer space."""
    part: list[str] = []
    for line in [*text.split("\n"), separator]:
        if line is not None and line.rstrip("\r") != separator:
            part.append(line)
            continue
        document = "\n".join(part)
        document = document if separator is None else document.strip()
        if document:
            yield document
        part = []


def score_texts(llm: LLM, texts: Iterable[str], window: int | None = None) -> Iterator[Score]:
    """Scores texts one after the other; yields the sums so far after each.

    Args:
        llm: the model.
        texts: scored separately, each from a bos token.
        window: most tokens of one model run, bos included; None is the context.

    Raises:
        PromptError: a text is none.
        InputError: the window is too small or larger than the context.
        BackendError: the model computed NaN, or that a token of a text is impossible.
    """
    context, bos = llm.model.context, _start(llm)
    size = context if window is None else as_int(window)
    least = max(2, len(bos) + 1)  # what a text begins with, and a token behind it
    if context < least:
        raise InputError(
            f"the context is {context} token{'s' if context > 1 else ''}; scoring needs {least} or "
            "more, one to predict the next"
        )
    if size is None or not least <= size <= context:
        raise InputError(f"a window of {shown(window)} tokens; expected {least} to {context}")
    score = Score()
    step = size - len(bos)
    for item in check_texts(texts):
        text = check_text("a text to score", item)
        ids = llm.tokenizer.encode(text, bos=False)
        unscored = 0
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            if not bos:
                unscored += len(llm.tokenizer.token_bytes(part[0]))
            score.nats += _nats(llm, bos + part, len(bos) or 1)
            score.tokens += len(part) - (0 if bos else 1)
            score.windows += 1
        score.bytes += len(text.encode()) - unscored
        score.documents += 1
        yield replace(score)


def _start(llm: LLM) -> list[int]:
    """The bos ids, or the bos token of a tokenizer that does not put it before prompts."""
    bos = llm.tokenizer.token_id(llm.tokenizer.special_token("bos"))
    return list(llm.tokenizer.bos_ids) or ([] if bos is None else [bos])


def _nats(llm: LLM, ids: list[int], first: int) -> float:
    """Sum of -ln p of ``ids[first:]``, each given the ids before it."""
    if len(ids) <= first:
        return 0.0
    total, row = 0.0, 0

    def add(block: NDArray[np.float32]) -> None:
        nonlocal total, row
        targets = np.array(ids[row + 1 : row + 1 + len(block)])
        skipped = max(first - 1 - row, 0)
        total += float(_surprise(block[skipped:], targets[skipped:]).sum())
        row += len(block)

    llm.take_logits(ids[:-1], add)
    if not math.isfinite(total):
        raise BackendError(
            f"the model computed logits that give a text the surprise {total}; check the weights, "
            "or run with EDGERUN_VALIDATE=1 to find the operation"
        )
    return total


def _surprise(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """-ln softmax(logits)[target] of each row, float64 ``[rows]``."""
    highest = logits.max(axis=-1, keepdims=True)
    sums = np.exp(logits - highest).sum(axis=-1, dtype=np.float64)
    chosen = logits[np.arange(len(logits)), targets].astype(np.float64)
    surprise: NDArray[np.float64] = np.log(sums) + highest[:, 0] - chosen
    return surprise
