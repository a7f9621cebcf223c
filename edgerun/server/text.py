"""``/v1/completions``: texts, or ids, that are continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.llm.replies.completion import Completion, Part
from edgerun.llm.replies.several import text_replies
from edgerun.llm.replies.stream import TextStream
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.server.body import as_options, split, with_sent
from edgerun.server.encoding.shapes import shape_of
from edgerun.server.logprobs import TextLogprobs
from edgerun.server.problems import PROMPT, Problem
from edgerun.server.work import (
    MOST_CHOICES,
    CommonFields,
    Count,
    Head,
    Work,
    finish_reason,
)

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM


class TextFields(CommonFields, kw_only=True):
    """Fields of a request that are no sampling options."""

    prompt: str | list[str | int | list[int]]
    n: Count = 1
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None
    logprobs: Any = None


class TextForm:
    """Writes replies as texts."""

    def __init__(
        self, head: Head, tokenizer: Tokenizer, prompts: Sequence[str | list[int]], each: int
    ) -> None:
        """Takes what all objects share, what spells tokens, and prompts with ``each`` replies."""
        self._head, self._tokenizer = head, tokenizer
        self._prompts, self._each = prompts, each
        self._echoed = [""] * len(prompts) * each
        self._logprobs: list[TextLogprobs] = []

    def begin(self, streams: Sequence[TextStream]) -> None:
        """Takes the replies that are to be written."""
        self._logprobs = [
            TextLogprobs(self._tokenizer, continues=stream.continues) for stream in streams
        ]

    def echo(self) -> None:
        """Puts prompts before their replies."""
        texts = [
            prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
            for prompt in self._prompts
        ]
        self._echoed = [text for text in texts for _ in range(self._each)]

    def head(self) -> dict[str, Any]:
        return self._head.of("text_completion")

    def whole(self, index: int, completion: Completion) -> dict[str, Any]:
        text = self._echoed[index] + completion.text
        return {"text": text, "logprobs": None, **finish_reason(completion)}

    def first(self, index: int) -> list[dict[str, Any]]:
        echoed = self._echoed[index]
        return [_choice(echoed)] if echoed else []

    def piece(self, part: Part) -> dict[str, Any]:
        return _choice(part.text)

    def last(self, completion: Completion) -> list[dict[str, Any]]:
        return [{**_choice(""), **finish_reason(completion)}]

    def logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._logprobs[index].lists(entries)


def read_text(body: dict[str, Any], llm: LLM, head: Head) -> Work:
    """What a request asks for.

    Raises:
        Problem: it cannot be done.
    """
    fields, sampling = split(body, TextFields, frozenset({"logprobs"}))
    if fields.best_of not in (None, fields.n):
        raise Problem(400, "best_of: all replies are returned here; leave it out", None, "best_of")
    if fields.logprobs is not None:
        if fields.echo:
            raise _both("logprobs are of replies alone: leave echo or logprobs out", "logprobs")
        sampling["logprobs"] = fields.logprobs
    if fields.suffix is not None and fields.echo:
        raise _both("a reply fills the gap before the suffix: leave echo or suffix out", "suffix")
    prompts = _prompts(fields)
    sampling, sent = with_sent(as_options(sampling), {})
    sent[PROMPT] = "prompt"
    form = TextForm(head, llm.tokenizer, prompts, fields.n)
    with_logprobs = "logprobs" in sampling

    def make() -> list[TextStream]:
        streams = text_replies(llm, prompts, fields.n, suffix=fields.suffix, **sampling)
        if with_logprobs:
            form.begin(streams)
        if fields.echo:  # prompts that are known to fit; ids take their time
            form.echo()
        return streams

    count = len(prompts) * fields.n
    shape = shape_of(sampling, count)
    return Work(fields, make, count, form, sent, shape, len(prompts), with_logprobs)


def _both(reason: str, field: str) -> Problem:
    """Of two fields that exclude each other."""
    return Problem(400, reason, "invalid_value", field)


def _choice(text: str) -> dict[str, Any]:
    return {"text": text, "logprobs": None, "finish_reason": None}


def _prompts(fields: TextFields) -> list[str | list[int]]:
    """One prompt or several, each a text or ids."""
    given: Any = fields.prompt
    if isinstance(given, str) or (given and all(isinstance(item, int) for item in given)):
        return [given]
    if not given or any(isinstance(item, int) for item in given):
        raise Problem(
            400,
            "prompt: expected a text, a list of token ids, or a list of either",
            "invalid_value",
            "prompt",
        )
    if len(given) * fields.n > MOST_CHOICES:
        raise Problem(
            400,
            f"{len(given)} prompts with {fields.n} replies each; at most {MOST_CHOICES} fit",
            "too_many_replies",
            "prompt",
        )
    prompts: list[str | list[int]] = given
    return prompts
