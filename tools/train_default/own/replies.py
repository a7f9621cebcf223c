"""Rows of the model's own replies, from which it learns what it does by itself (`marking.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from tokenizers import Tokenizer

from tools.train_default.batches import Array
from tools.train_default.from_teacher.targets import likeliest
from tools.train_default.model import LanguageModel, TernaryLM
from tools.train_default.own.marking import (
    NOUNS,
    Reply,
    marked,
    pack,
    requests,
    shares,
    taught,
)
from tools.train_default.own.sampler import Sampler
from tools.train_default.own.voice import Voice
from tools.train_default.recipe import Recipe
from tools.train_default.tokenizer import END, TEXT, render_chat
from tools.train_default.workers import Batch

LIKELIEST = 24  # tokens that a teacher says of each
READ = 16  # replies that a teacher reads at a time


def rendered(text: str) -> str:
    """What a reply to a request begins behind."""
    return f"{TEXT}{render_chat([{'role': 'user', 'content': text}])}<|assistant|>"


def named_often(nouns: Sequence[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The nouns, and twice more those of several tokens, which are the hardest to say again."""
    encoded = tokenizer.encode_batch([f" {noun}" for noun in nouns], add_special_tokens=False)
    several = [noun for noun, each in zip(nouns, encoded, strict=True) if len(each.ids) > 1]
    return (*nouns, *several, *several)


def read_rows(teacher: LanguageModel, ids: Array) -> tuple[Array, Array]:
    """What a teacher says of rows [rows, tokens] of text, as `LanguageModel.head_loss` takes it.

    Returns:
        its likeliest ids, int32, and their log p, float32 `[rows, tokens, LIKELIEST]`.
    """
    tokens, log_p = zip(*likeliest(teacher, list(ids.clip(min=0)), LIKELIEST), strict=True)
    return np.stack(tokens).astype(np.int32), np.stack(log_p).astype(np.float32)


class OwnReplies:
    """A store of rows, made anew every so many steps (`own_...` of the recipe).

    It is not in checkpoints: a run that goes on makes it anew.

    Args:
        voice: by which the model answers.
        nouns: that requests name.
        teacher: who says what should have been said; without, repetitions become unlikely.
        sampler: that has a say in it; without, the teacher is asked in some places alone.
    """

    def __init__(
        self,
        model: TernaryLM,
        tokenizer: Tokenizer,
        recipe: Recipe,
        voice: Voice,
        nouns: Sequence[str] = NOUNS,
        teacher: LanguageModel | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.model, self.tokenizer, self.recipe, self.voice = model, tokenizer, recipe, voice
        self.nouns, self.teacher, self.sampler = named_often(nouns, tokenizer), teacher, sampler
        self.rng, self.context = Random(recipe.seed), recipe.context[1]
        self.drawn = np.random.default_rng(recipe.seed)
        self.end = tokenizer.token_to_id(END)
        self.rows: list[Batch] = []
        self.at, self.due = 0, 0

    def is_due(self, step: int, progress: float) -> bool:
        return step >= self.due and progress >= self.recipe.own_from

    def answer(self, count: int, seed: int) -> list[Reply]:
        """`count` replies to requests, half of them greedy."""
        asked = list(requests(self.rng, count, self.nouns))
        greedy = [at % 2 == 0 for at in range(count)]
        said = self.voice.answer(self.model, [text for text, _ in asked], greedy, seed)
        chats = [rendered(text) for text, _ in asked]
        prompts = self.tokenizer.encode_batch(chats, add_special_tokens=False)
        return [
            Reply(
                prompt=prompt.ids,
                ids=[*ids, self.end] if ended else ids,
                text=self.tokenizer.decode(ids),
                noun=noun,
                greedy=is_greedy,
                ended=ended,
                names=self.beginnings(noun),
            )
            for (_, noun), prompt, is_greedy, (ids, ended) in zip(
                asked, prompts, greedy, said, strict=True
            )
        ]

    def marked(self, replies: Sequence[Reply]) -> Iterator[tuple[Array, ...]]:
        """What is to be learned from each reply."""
        repeat, learn_good = self.recipe.repeat, self.recipe.own_good
        if self.teacher is None:
            yield from (marked(reply, repeat, learn_good) for reply in replies)
            return
        ordered = sorted(replies, key=lambda reply: len(reply.ids))
        for at in range(0, len(ordered), READ):
            part = ordered[at : at + READ]
            rows = [np.array(reply.prompt + reply.ids) for reply in part]
            said = likeliest(self.teacher, rows, LIKELIEST)
            for reply, (tokens, log_p) in zip(part, said, strict=True):
                subject, weight = self.recipe.own_subject, self.recipe.unlikelihood
                if self.sampler is None:
                    yield taught(reply, tokens, log_p, repeat, learn_good, subject, weight)
                else:
                    yield self.sampler.reply(reply, tokens, log_p, self.drawn, subject)

    def refill(self, step: int) -> dict[str, float]:
        """Answers anew, by the weights of a step; returns `marking.shares` of the replies.

        Other requests are answered at every step, and the same ones by a run that is repeated.
        """
        self.rng = Random(f"{self.recipe.seed} {step}")
        self.drawn = np.random.default_rng([self.recipe.seed, step])
        replies = self.answer(self.recipe.own_replies, step * self.recipe.own_replies)
        self.rows = pack(self.marked(replies), self.context)
        self.at, self.due = 0, step + self.recipe.own_steps
        return shares(replies)

    def beginnings(self, noun: str | None) -> frozenset[int]:
        """The tokens with which a noun begins, in a sentence or as its first word."""
        spelled = (f" {noun}", f" {noun.capitalize()}", noun.capitalize()) if noun else ()
        ids = (self.tokenizer.encode(text, add_special_tokens=False).ids for text in spelled)
        return frozenset(each[0] for each in ids)

    def batches(self, rows: int, count: int) -> Iterator[Batch]:
        """`count` microbatches of `rows` rows, in turn."""
        for _ in range(count):
            chosen = [self.rows[(self.at + i) % len(self.rows)] for i in range(rows)]
            self.at += rows
            yield tuple(np.stack(each) for each in zip(*chosen, strict=True))
