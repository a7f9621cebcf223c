"""A part of a tokenizer spells what it was cut for as the whole does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_default.from_teacher.vocabulary import (
    applied,
    check_same,
    cut,
    merges_of,
    uses,
)
from tools.train_default.tokenizer import SPECIAL

SOURCE_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unused>"]
WIDE = "The old lighthouse keeper, a captain, had forty-two buckets; whose were they? " * 3
STORY = "Once there was a cat. The cat sat on the mat and the mat was the cat's own mat. "
BYTES = 256


@pytest.fixture(scope="module")
def source() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SOURCE_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([STORY, WIDE, "assistant user system " * 9], trainer)
    return tokenizer.to_str()


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


def test_merges_are_applied_as_the_tokenizer_does(source: str) -> None:
    ranks = {pair: rank for rank, pair in enumerate(merges_of(json.loads(source)["model"]))}
    whole = Tokenizer.from_str(source)
    for word, _ in whole.pre_tokenizer.pre_tokenize_str(STORY + WIDE):
        merges = list(applied(word, ranks))
        assert len(word) - len(merges) == len(whole.model.tokenize(word)), word


def test_text_is_spelled_as_before_if_all_its_merges_are_kept(source: str) -> None:
    whole = Tokenizer.from_str(source)
    merges = merges_of(json.loads(source)["model"])
    used = sum(count > 0 for count in uses(whole, merges, [STORY]).values())
    part = Tokenizer.from_str(cut(source, [STORY], len(SPECIAL) + BYTES + used)[0])
    assert spelled(part, STORY) == spelled(whole, STORY)
    assert len(spelled(part, WIDE)) > len(spelled(whole, WIDE))
    less = Tokenizer.from_str(cut(source, [STORY], len(SPECIAL) + BYTES + used - 1)[0])
    assert len(spelled(less, STORY)) > len(spelled(whole, STORY))


@pytest.mark.parametrize("room", [0, 1, 7, 40])
def test_every_size_is_closed_and_spells_any_text(source: str, room: int) -> None:
    content, rows = cut(source, [STORY], len(SPECIAL) + BYTES + room)
    part = Tokenizer.from_str(content)
    vocab = part.get_vocab()
    assert len(rows) == len(vocab) == part.get_vocab_size() == len(SPECIAL) + BYTES + room
    for first, second in json.loads(content)["model"]["merges"]:
        assert {first, second, first + second} <= vocab.keys()
    for text in (STORY, WIDE, "Zoë's café: 東京"):
        assert part.decode(part.encode(text).ids) == text


def test_rows_name_the_same_tokens(source: str) -> None:
    whole = Tokenizer.from_str(source)
    content, rows = cut(source, [STORY], 300)
    part = Tokenizer.from_str(content)
    for at in range(len(SPECIAL), 300):
        assert [whole.id_to_token(row) for row in rows[at]] == [part.id_to_token(at)]
    named = {part.id_to_token(at): rows[at] for at in range(len(SPECIAL))}
    assert list(named) == list(SPECIAL)
    assert named["<|endoftext|>"] == [0]
    assert named["<|end|>"] == [2]
    assert named["<|user|>"] == [1, *whole.encode("user").ids]


def test_what_is_used_most_stays(source: str) -> None:
    whole = Tokenizer.from_str(source)
    merges = merges_of(json.loads(source)["model"])
    counts: Counter[tuple[str, str]] = uses(whole, merges, [STORY])
    remaining = json.loads(cut(source, [STORY], len(SPECIAL) + BYTES + 5)[0])["model"]["merges"]
    fifth = sorted(counts.values())[-5]
    assert all(counts[first, second] >= fifth for first, second in remaining)


def test_a_size_without_room_for_bytes_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="256 bytes"):
        cut(source, [STORY], len(SPECIAL) + BYTES - 1)


def test_a_teacher_of_other_tokens_is_refused(source: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(cut(source, [STORY], 300)[0])
    cases = {
        "same": (tokenizer, 300),
        "whole": (Tokenizer.from_str(source), 420),
        "of other text": (Tokenizer.from_str(cut(source, [WIDE], 300)[0]), 300),
        "with a wider table": (tokenizer, 320),
    }
    for name, (teacher, rows) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        teacher.save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(json.dumps({"vocab_size": rows}))
    check_same(tmp_path / "same", tokenizer)
    for name in list(cases)[1:]:
        said = f"{name} has a vocabulary of {cases[name][1]} that is not the student's of 300"
        with pytest.raises(ValueError, match=said):
            check_same(tmp_path / name, tokenizer)
