"""What a model says to requests, by edgerun: many together, in a seventh of the time of torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import edgerun
from edgerun_export.options import ExportOptions
from edgerun_export.pipeline import export
from tools.train_default.model import TernaryLM
from tools.train_default.save import save_hf

LIMIT = 300  # tokens of a reply
TEMPERATURE, TOP_P = 0.8, 0.9  # of those that are drawn
TOGETHER = 64  # replies at a time
# What generation_config.json asks for the shipped model, and its own replies shall be without.
ALONE = {"min_p": 0.0, "dry_multiplier": 0.0}


class Voice:
    """Answers by a bundle, made anew of the weights as they are.

    Args:
        tokenizer: folder of the tokenizer's files.
        context: tokens of a request and its reply at most.
    """

    def __init__(self, tokenizer: Path, context: int) -> None:
        self.tokenizer, self.context = tokenizer, context

    def answer(
        self, model: TernaryLM, texts: Sequence[str], greedy: Sequence[bool], seed: int
    ) -> list[tuple[list[int], bool]]:
        """Ids of a reply to each request, without what ended it, and whether the model ended it.

        Args:
            texts: what a user says.
            greedy: whether the reply is the likeliest tokens; others are drawn.
            seed: of the first reply; others have those that follow.
        """
        options = [
            {"seed": seed + at, "temperature": 0.0 if likeliest else TEMPERATURE}
            for at, likeliest in enumerate(greedy)
        ]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, bundle = Path(folder, "checkpoint"), Path(folder, "bundle")
            save_hf(model, self.tokenizer, checkpoint)
            export(str(checkpoint), bundle, ExportOptions(weights="ternary", group_size=256))
            with edgerun.load(bundle, context=self.context, max_sessions=TOGETHER) as llm:
                chats = [[{"role": "user", "content": text}] for text in texts]
                replies = llm.chat_many(chats, options, max_tokens=LIMIT, top_p=TOP_P, **ALONE)
        return [(reply.ids, reply.finish_reason == "stop") for reply in replies]
