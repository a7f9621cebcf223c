"""What a sampler that keeps from repetitions leaves of what is said; needs no torch.

The model learns it from its own replies, and then does by itself what the sampler (DRY, edgerun's
`engine/sampling/dry.py`) does with its logits: the teacher is the model as it was, less the
sampler's penalties. Where nothing is repeated that is what the model says anyhow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgerun.engine.sampling.dry import Dry
from edgerun.model.text.tokenizer import Tokenizer
from tools.train_default.batches import PAD, Array
from tools.train_default.own.marking import Reply, repeats, towards

NOTICED = 0.01  # of p, which a penalty has to take to count
LOOP = 6  # tokens in a row that came before, from which on a reply goes round in circles


@dataclass(frozen=True)
class Sampler:
    """DRY for what a model says.

    Attributes:
        dry: with a vocabulary, where its breakers are texts.
        weight: of what is said where the sampler takes part.
    """

    dry: Dry
    weight: float = 1.0

    @classmethod
    def of(cls, tokenizer: Path, multiplier: float, allowed: int, weight: float) -> Sampler:
        """That for a `tokenizer.json`; other options are as usual."""
        vocabulary = Tokenizer.from_json(tokenizer.read_text(), is_own=True)
        dry = Dry(dry_multiplier=multiplier, dry_allowed_length=allowed)
        return cls(dry.with_vocabulary(vocabulary), weight)

    def penalties(self, ids: Array, tokens: Array) -> Array:
        """What is subtracted behind each id [n] from the logits of `tokens` [n, k]."""
        sampler = self.dry.begin([], 0)
        amounts = np.zeros(tokens.shape, np.float32)
        for at, id_ in enumerate(ids.tolist()):
            sampler.accept(id_)
            if (adjustment := sampler.adjustment()) is not None:
                for token, amount in zip(adjustment.ids, adjustment.amounts, strict=True):
                    amounts[at][tokens[at] == token] = amount
        return amounts

    def left(
        self, tokens: Array, log_p: Array, amounts: Array, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        """What penalties leave, times the weight, and a token drawn by it for each place.

        Args:
            tokens: the likeliest `[n, k]`.
            log_p: their log p; with all others, that are not penalised, p adds up to 1.
            amounts: the penalties of each `[n, k]`.
            rng: draws.

        Returns:
            log p `[n, k]`, of the tokens one each `[n]`, and how much p the penalties take `[n]`.
        """
        p = np.exp(log_p)
        lost = (p * -np.expm1(-amounts)).sum(-1)
        remaining = log_p - amounts - np.log(np.maximum(1 - lost, 1e-9))[:, None]
        sums = np.exp(remaining).cumsum(-1)
        drawn = (sums > rng.random((len(sums), 1)) * sums[:, -1:]).argmax(-1)
        remaining += np.where(lost > NOTICED, np.log(self.weight), 0.0)[:, None]
        return remaining, np.take_along_axis(tokens, drawn[:, None], -1)[:, 0], lost

    def reply(
        self,
        reply: Reply,
        tokens: Array,
        log_p: Array,
        rng: np.random.Generator,
        subject: float = 1.0,
    ) -> tuple[Array, Array, Array, Array]:
        """Ids and targets of a reply, and what is said of it; nothing is asked of the prompt.

        Nor is anything where the reply goes round in circles, but what the sampler changes: the
        model as it was would have it go on.

        Args:
            tokens: the likeliest after each token of prompt and reply, as the model was `[n, k]`.
            log_p: its log p of them `[n, k]`.
            rng: draws a target for each place.
            subject: how many times as likely the reply's subject shall be while it is not named.

        Returns:
            ids and targets `[n - 1]`, and ids (int32) and log p (float32) `[n - 1, k]`, as
            `LanguageModel.head_loss` takes them.
        """
        start = len(reply.prompt) - 1  # what is said after it is the first token of the reply
        ids = np.array([*reply.prompt, *reply.ids], np.int64)[:-1]
        tokens, said = tokens[:-1].astype(np.int32), log_p[:-1].astype(np.float32)
        amounts = self.penalties(ids, tokens)
        likely = towards(reply, tokens[start:], said[start:], subject)
        said[:start] = -np.inf
        said[start:], drawn, lost = self.left(tokens[start:], likely, amounts[start:], rng)
        is_loop = np.logical_or.accumulate(repeats(reply.ids, LOOP))
        drawn[is_loop & (lost <= NOTICED)] = PAD
        return ids, np.concatenate([np.full(start, PAD), drawn]), tokens, said
