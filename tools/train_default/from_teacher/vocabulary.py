"""A part of a tokenizer's byte-level BPE that spells some text as the whole does; no torch.

A merge is applied at most as often as those that made its parts, so the merges that a text uses
most, ties going to the older, are closed: what they need is among them. A word all of whose merges
are kept is spelled as before, since merges keep their order; other words come in smaller pieces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tools.train_default.tokenizer import ASSISTANT, END, SPECIAL, SYSTEM, TEXT, USER

Merge = tuple[str, str]
# What the source writes for a special token, which begins with the average of these rows.
ANCESTORS = {
    TEXT: "<|endoftext|>",
    SYSTEM: "<|im_start|>system",
    USER: "<|im_start|>user",
    ASSISTANT: "<|im_start|>assistant",
    END: "<|im_end|>",
}


def merges_of(model: dict[str, Any]) -> list[Merge]:
    """Of the field `model` of a tokenizer.json, the oldest first."""
    pairs = (each.split(" ") if isinstance(each, str) else each for each in model["merges"])
    return [(first, second) for first, second in pairs]


def applied(word: str, ranks: dict[Merge, int]) -> Iterator[Merge]:
    """The merges that spell a word, given as characters that stand for bytes."""
    parts = list(word)
    while True:
        pairs = [pair for pair in zip(parts, parts[1:], strict=False) if pair in ranks]
        if not pairs:
            return
        best, merged, at = min(pairs, key=ranks.__getitem__), [], 0
        while at < len(parts):
            if tuple(parts[at : at + 2]) == best:
                yield best
                merged.append(best[0] + best[1])
                at += 2
            else:
                merged.append(parts[at])
                at += 1
        parts = merged


def uses(tokenizer: Tokenizer, merges: list[Merge], texts: Iterable[str]) -> Counter[Merge]:
    """How often each merge is applied in some texts."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    counts: Counter[Merge] = Counter()
    for word, times in words.items():
        for pair in applied(word, ranks):
            counts[pair] += times
    return counts


def cut(source: str, texts: Iterable[str], size: int) -> tuple[str, list[list[int]]]:
    """A tokenizer of so many entries, special tokens of the default model's chats first.

    Args:
        source: a tokenizer.json of byte-level BPE.
        texts: whose merges are counted.
        size: of the vocabulary.

    Returns:
        its tokenizer.json, and for each entry the source's ids that it stands for.

    Raises:
        ValueError: the size has no room for bytes and special tokens.
    """
    fields = json.loads(source)
    vocab: dict[str, int] = fields["model"]["vocab"]
    merges = merges_of(fields["model"])
    alphabet = sorted((token for token in vocab if len(token) == 1), key=vocab.__getitem__)
    room = size - len(SPECIAL) - len(alphabet)
    if room < 0:
        raise ValueError(f"a vocabulary of {size} has no room for {len(alphabet)} bytes and chats")
    tokenizer = Tokenizer.from_str(source)
    counts = uses(tokenizer, merges, texts)
    most = sorted(range(len(merges)), key=lambda rank: (-counts[merges[rank]], rank))[:room]
    chosen = [merges[rank] for rank in sorted(most)]
    plain = [*alphabet, *(first + second for first, second in chosen)]
    rows = [tokenizer.encode(ANCESTORS[each], add_special_tokens=False).ids for each in SPECIAL]
    rows += [[vocab[each]] for each in plain]
    fields["model"]["vocab"] = {name: at for at, name in enumerate((*SPECIAL, *plain))}
    fields["model"]["merges"] = [list(pair) for pair in chosen]
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    fields["added_tokens"] = [
        {"id": at, "content": name, **usual, "special": True} for at, name in enumerate(SPECIAL)
    ]
    return json.dumps(fields, ensure_ascii=False), rows


def check_same(teacher: Path, tokenizer: Tokenizer) -> None:
    """Whether a teacher reads and says the tokens of a student's tokenizer.

    Args:
        teacher: Hugging Face directory.

    Raises:
        ValueError: it has other tokens, or a table of another size.
    """
    its_own = Tokenizer.from_file(str(teacher / "tokenizer.json")).get_vocab()
    rows = json.loads((teacher / "config.json").read_text())["vocab_size"]
    vocab = tokenizer.get_vocab()
    if its_own != vocab or rows != len(vocab):
        raise ValueError(
            f"the teacher {teacher} has a vocabulary of {rows} that is not the student's of "
            f"{len(vocab)}: cut and train one by the same tokenizer (from_teacher/cut.py), or take "
            "the tokenizer of the teacher"
        )
