"""Prints what models say, token by token without sampling, as JSON: the same on every machine.

    python -m tools.emulate_isa.aarch64.replies BUNDLE...

The default model completes a few texts; of the bundles, which need no tokenizer, the ids that
follow those of ``PROMPT`` are told.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from edgerun import load
from tests.support.bundles import runner

TEXTS = ("Tell me a story about a dog.", "Hello!", "What is the sun?")
TOKENS = 80
PROMPT = tuple(range(3, 20))
IDS = 24


def text_replies() -> dict[str, str]:
    """Replies of the default model."""
    with load(backend="cpu", threads=1) as llm:
        return {
            text: llm.chat(
                [{"role": "user", "content": text}], temperature=0, max_tokens=TOKENS
            ).text
            for text in TEXTS
        }


def id_replies(bundle: Path) -> list[int]:
    """The likeliest ids after ``PROMPT``, one after another."""
    ids: list[int] = []
    with runner(bundle, "cpu") as model:
        logits = model.run(PROMPT)
        while len(ids) < IDS:
            ids.append(int(np.argmax(logits[-1])))
            logits = model.run(ids[-1:])
    return ids


def main() -> None:
    """Command line."""
    replies: dict[str, str | list[int]] = {**text_replies()}
    for name in sys.argv[1:]:
        replies[Path(name).name] = id_replies(Path(name))
    print(json.dumps(replies))


if __name__ == "__main__":
    main()
