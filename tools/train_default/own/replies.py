"""Rows of the model's own replies, from which it learns what it does by itself (`marking.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.train_default.batches import Array
from tools.train_default.from_teacher.targets import likeliest
from tools.train_default.model import Cache, LanguageModel, TernaryLM
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
from tools.train_default.recipe import Recipe
from tools.train_default.tokenizer import END, TEXT, render_chat
from tools.train_default.workers import Batch

LIMIT = 300  # tokens of a reply, or as many as the context has left
TEMPERATURE, TOP_P = 0.8, 0.9  # of those that are drawn
CHOICES = 256  # tokens that are drawn from at most
LIKELIEST = 24  # tokens that a teacher says of each
READ = 16  # replies that a teacher reads at a time


@torch.no_grad()
def continuations(
    model: TernaryLM, prompts: Tensor, greedy: Tensor, stop: Sequence[int], limit: int
) -> list[list[int]]:
    """What the model says after prompts [n, tokens]: greedily where `greedy` [n], or drawn.

    A reply ends with a token of `stop`, or with the `limit`-th, which it has then.
    """
    cache, step = Cache(), prompts
    said: list[list[int]] = [[] for _ in prompts]
    going = torch.arange(len(prompts))
    for length in range(1, limit + 1):
        with model.autocast():
            logits = model.head(model.hidden(step, cache)[:, -1]).float()
        likely = logits.topk(min(CHOICES, logits.shape[1]))
        p = (likely.values / TEMPERATURE).softmax(-1)
        p = p * (p.cumsum(-1) - p < TOP_P)
        drawn = likely.indices.gather(1, torch.multinomial(p, 1))
        step = torch.where(greedy[going, None], likely.indices[:, :1], drawn)
        for row, token in zip(going.tolist(), step[:, 0].tolist(), strict=True):
            if not said[row] or said[row][-1] not in stop:
                said[row].append(token)
        if length % 16 == 0:  # leave those out that have ended
            rows = [at for at, row in enumerate(going.tolist()) if said[row][-1] not in stop]
            if not rows:
                break
            going, step = going[rows], step[rows]
            cache.keep(rows)
    return said


def named_often(nouns: Sequence[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The nouns, and twice more those of several tokens, which are the hardest to say again."""
    encoded = tokenizer.encode_batch([f" {noun}" for noun in nouns], add_special_tokens=False)
    several = [noun for noun, each in zip(nouns, encoded, strict=True) if len(each.ids) > 1]
    return (*nouns, *several, *several)


class OwnReplies:
    """A store of rows, made anew every so many steps (`own_...` of the recipe).

    It is not in checkpoints: a run that goes on makes it anew.

    Args:
        nouns: that requests name.
        teacher: who says what should have been said; without, repetitions become unlikely.
        sampler: that has a say in it; without, the teacher is asked in some places alone.
    """

    def __init__(
        self,
        model: TernaryLM,
        tokenizer: Tokenizer,
        recipe: Recipe,
        nouns: Sequence[str] = NOUNS,
        teacher: LanguageModel | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self.nouns, self.teacher, self.sampler = named_often(nouns, tokenizer), teacher, sampler
        self.rng, self.context = Random(recipe.seed), recipe.context[1]
        self.drawn = np.random.default_rng(recipe.seed)
        self.stop = [tokenizer.token_to_id(END), tokenizer.token_to_id(TEXT)]
        self.rows: list[Batch] = []
        self.at, self.due = 0, 0

    def is_due(self, step: int, progress: float) -> bool:
        return step >= self.due and progress >= self.recipe.own_from

    def answer(self, count: int) -> list[Reply]:
        """Up to `count` replies to different requests of one length, half of them greedy."""
        asked = list(dict.fromkeys(requests(self.rng, 12 * count, self.nouns)))
        texts = [
            f"{TEXT}{render_chat([{'role': 'user', 'content': text}])}<|assistant|>"
            for text, _ in asked
        ]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        prompts = [each.ids for each in encoded]
        length = len(self.rng.choice(prompts))
        pairs = [
            (ids, noun) for ids, (_, noun) in zip(prompts, asked, strict=True) if len(ids) == length
        ][:count]
        greedy = torch.arange(len(pairs)) % 2 == 0
        prompt_ids = torch.tensor([ids for ids, _ in pairs])
        limit = min(LIMIT, self.context - length)
        said = continuations(self.model, prompt_ids, greedy, self.stop, limit)
        return [
            Reply(
                prompt=ids,
                ids=own,
                text=self.tokenizer.decode(own),
                noun=noun,
                greedy=bool(is_greedy),
                ended=own[-1] in self.stop,
                names=self.beginnings(noun),
            )
            for (ids, noun), own, is_greedy in zip(pairs, said, greedy, strict=True)
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
        replies = self.answer(self.recipe.own_replies)
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
