"""Merges rebuilt from scores against sentencepiece's own rule, and against sentencepiece."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.bundle_files import implied_generation
from edgerun_export.tokenizers import from_hugging_face, spm
from edgerun_export.tokenizers.vocabulary import Kind, Vocabulary

tokenizers = pytest.importorskip("tokenizers")
SPACE = "\u2581"
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def build(pieces: list[str], *, prefix: bool = True, **roles: Any) -> dict[str, bytes]:
    """Files of a vocabulary whose pieces score in order of appearance."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL] + [Kind.BYTE] * 256
    kinds += [Kind.NORMAL] * len(pieces)
    vocabulary = Vocabulary(tokens, kinds, **{"bos": 1, "eos": 2, "unk": 0} | roles)
    scores = [0.0] * 259 + [-float(index) for index in range(len(pieces))]
    return spm.build(vocabulary, scores, prefix=prefix)


def load(files: dict[str, bytes]) -> Any:
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())


@pytest.mark.parametrize("seed", range(60))
def test_merges_as_sentencepiece_does(
    seed: int, reference: Callable[..., list[str]], make_pieces: Callable[..., list[str]]
) -> None:
    pieces = make_pieces(seed)
    tokenizer = load(build(pieces))
    scores = [-float(index) for index in range(len(pieces))]
    draw = random.Random(seed)
    merged = 0
    for _ in range(50):
        text = "".join(draw.choices("ab ", k=draw.randrange(1, 30)))
        expected = reference(text, pieces, scores)
        assert tokenizer.encode(text).tokens == expected, (pieces, text)
        merged += len(expected) <= len(text)
    assert merged > 10


def test_ranks_overlapping_splits_left_first() -> None:
    """ab|aba at the left and aba|ba at the right overlap in ab, aba, ba: the left one wins."""
    pieces = ["a", "b", "ab", "ba", "aba", "ababa"]
    vocabulary = Vocabulary(pieces, [Kind.NORMAL] * 6)
    merges = spm.merges_from_scores(vocabulary, [-float(index) for index in range(6)])
    assert merges.index(("ab", "aba")) < merges.index(("aba", "ba"))


def test_falls_back_to_bytes_and_back() -> None:
    tokenizer = load(build([SPACE, "a"]))
    text = " a\n é🦙 \0 a"
    encoded = tokenizer.encode(text)
    assert encoded.tokens[:4] == [SPACE, SPACE, "a", "<0x0A>"]
    assert "<0xF0>" in encoded.tokens
    assert tokenizer.decode(encoded.ids) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_the_prefix_is_a_choice(prefix: bool) -> None:
    tokenizer = load(build([SPACE, "a"], prefix=prefix))
    assert tokenizer.encode("a").tokens == ([SPACE] if prefix else []) + ["a"]
    assert tokenizer.decode(tokenizer.encode("a").ids) == "a"
    assert tokenizer.encode("").tokens == []


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (False, True), (True, True)])
def test_adds_begin_and_end(bos: bool, eos: bool) -> None:
    tokenizer = load(build([SPACE, "a"], add_bos=bos, add_eos=eos))
    expected = ["<s>"] * bos + [SPACE, "a"] + ["</s>"] * eos
    assert tokenizer.encode("a").tokens == expected
    assert tokenizer.encode("a", add_special_tokens=False).tokens == [SPACE, "a"]
    assert tokenizer.encode("a", "a").tokens == expected * 2
    assert tokenizer.decode(tokenizer.encode("a").ids) == "a"


def test_ordinary_pieces_never_merge_into_control_tokens() -> None:
    """llama.cpp would make </s> of "</" and "s>"; sentencepiece and we do not."""
    files = build(["<", "/", "s", ">", "</", "s>", SPACE])
    merges = json.loads(files["tokenizer.json"])["model"]["merges"]
    assert "< /" in merges
    assert "</ s>" not in merges


def test_refuses_pieces_too_long_to_try() -> None:
    with pytest.raises(UnsupportedError, match="a piece of 2000 characters"):
        build(["a", "a" * 2000])


def test_refuses_scores_that_are_missing_or_not_numbers() -> None:
    vocabulary = Vocabulary(["a", "b"], [1, 1])
    with pytest.raises(CheckpointError, match="2 pieces and 1 scores"):
        spm.build(vocabulary, [0.0], prefix=True)
    with pytest.raises(CheckpointError, match="NaN"):
        spm.build(vocabulary, [0.0, float("nan")], prefix=True)


def test_refuses_broken_vocabularies() -> None:
    with pytest.raises(CheckpointError, match="'a' twice"):
        Vocabulary(["a", "a"], [1, 1])
    with pytest.raises(CheckpointError, match="eos token's id is 7"):
        Vocabulary(["a"], [1], eos=7)
    with pytest.raises(CheckpointError, match="0 tokens"):
        Vocabulary([], [])


TEXT = """
Once upon a time there was a small fox who lived near the river, and the fox had a friend.
Every day they went to the old tree and looked at the birds. The birds sang songs about the sun!
"Hello," said the fox. "Hello, hello," said the birds; and then it rained for 40 days and 40 nights.
"""


def trained(folder: Path, **options: Any) -> bytes:
    """Train a sentencepiece model, the independent reference of the tests below."""
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = folder / "corpus.txt"
    corpus.write_text(TEXT * 3)
    settings = {
        "model_type": "bpe",
        "vocab_size": 400 if options.get("model_type") != "unigram" else 310,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "spm"), **settings | options
    )
    return (folder / "spm.model").read_bytes()


def from_model(data: bytes, **others: str) -> dict[str, bytes]:
    files = {name.replace("__", "."): text.encode() for name, text in others.items()}
    return from_hugging_face((files | {"tokenizer.model": data}).get)


@pytest.mark.filterwarnings("ignore:.*has no __module__ attribute:DeprecationWarning")
def test_a_sentencepiece_model_encodes_the_same(tmp_path: Path) -> None:
    data = trained(tmp_path)
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = load(from_model(data))
    draw = random.Random(0)
    words = TEXT.split() + ["  ", "\n", "é", "🦙🦙", "aaaaaaaa", "....", "\t", "fofoxx", "thethe"]
    for _ in range(300):
        text = " ".join(draw.choices(words, k=draw.randrange(1, 12)))
        text = text[draw.randrange(len(text)) :]
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text)) == text
    assert ours.encode("a").ids[0] == theirs.bos_id()
    assert ours.get_vocab_size() == 400


def test_user_defined_pieces_are_found_as_sentencepiece_finds_them(tmp_path: Path) -> None:
    data = trained(tmp_path, user_defined_symbols=["<sep>", "\u2581\u2581\u2581", "fox"])
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = load(from_model(data))
    for text in ("   a", "the <sep>", "a fox"):
        expected = theirs.encode(text)
        assert any(index in range(3, 6) for index in expected)
        assert ours.encode(text, add_special_tokens=False).ids == expected


def test_adds_the_tokens_of_transformers(tmp_path: Path) -> None:
    data = trained(tmp_path)
    config = {
        "add_bos_token": False,
        "added_tokens_decoder": {
            "1": {"content": "<s>", "special": True},
            "401": {"content": "<|end|>", "special": True},
        },
    }
    files = from_model(
        data,
        tokenizer_config__json=json.dumps(config),
        added_tokens__json='{"<mark>": 400}',
        chat_template__jinja="{{ messages }}",
    )
    tokenizer = load(files)
    assert tokenizer.encode("<|end|><mark>").ids == [401, 400]
    assert tokenizer.decode([401, 400]) == "<mark>"
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{ messages }}"
    hole = json.dumps({"<mark>": 500})
    with pytest.raises(CheckpointError, match="has id 500, but the next free one is 400"):
        from_model(data, added_tokens__json=hole)


@pytest.mark.parametrize(
    ("settings", "config", "ends"),
    [
        ({"eos_token": "<|end|>"}, {"eos_token_id": 7}, [7, 400]),
        ({"eos_token": "<|end|>"}, {"eos_token_id": 400}, 400),
        ({}, {"eos_token_id": 400}, [400, 2]),
        ({}, {}, 2),
    ],
)
def test_texts_end_where_the_checkpoint_says(
    settings: dict[str, Any], config: dict[str, Any], ends: Any, tmp_path: Path
) -> None:
    """And where the model itself does, if tokenizer_config.json does not say it."""
    settings = {**settings, "added_tokens_decoder": {"400": {"content": "<|end|>"}}}
    files = from_model(trained(tmp_path), tokenizer_config__json=json.dumps(settings))
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}
    written = json.loads(files["tokenizer_config.json"])
    generation = implied_generation(config, written, json.loads(files["tokenizer.json"]))
    assert generation["eos_token_id"] == ends
    assert written["bos_token"] == "<s>"


def test_added_tokens_take_spaces_along_as_transformers_says(tmp_path: Path) -> None:
    added = {
        "400": {"content": "<|user|>", "special": True, "rstrip": True},
        "401": {"content": "<|end|>", "special": True, "lstrip": True, "normalized": True},
        "402": {"content": "<x>", "single_word": True},
    }
    config = json.dumps({"added_tokens_decoder": added})
    tokenizer = load(from_model(trained(tmp_path), tokenizer_config__json=config))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    assert ids("<|user|>\n the <|end|>") == [400, *ids("the"), 401]
    assert ids("<x> ")[0] == 402
    assert 402 not in ids("a<x>a")


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, ["_fox", "[X]", "_fox"]),
        ({"legacy": True}, ["_fox", "[X]", "_fox"]),
        ({"legacy": None, "add_prefix_space": None}, ["_fox", "[X]", "_fox"]),
        ({"legacy": False}, ["_fox", "[X]", "fox"]),
        ({"add_prefix_space": False}, ["fox", "[X]", "fox"]),
        ({"legacy": False, "add_prefix_space": False}, ["fox", "[X]", "fox"]),
    ],
)
def test_spaces_stand_in_front_of_texts_as_transformers_has_them(
    settings: dict[str, Any], tokens: list[str], tmp_path: Path
) -> None:
    settings = {**settings, "added_tokens_decoder": {"400": {"content": "[X]", "special": True}}}
    data = trained(tmp_path)
    tokenizer = load(from_model(data, tokenizer_config__json=json.dumps(settings)))
    ids = tokenizer.encode("fox[X]fox", add_special_tokens=False).ids
    pieces = [tokenizer.id_to_token(id_) for id_ in ids]
    assert "".join(pieces).replace(SPACE, "_") == "".join(tokens)
    assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") == "foxfox"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "unigram"}, "of type unigram"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normalises text"),
        ({"remove_extra_whitespaces": True}, "normalises text"),
    ],
)
def test_refuses_what_cannot_be_carried_over(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        from_model(trained(tmp_path, **options))


def test_refuses_a_broken_model(tmp_path: Path) -> None:
    data = trained(tmp_path)
    cut = data[: data.index(b"<0x80>") + 3]  # in the middle of a piece
    for broken in (cut, b"\x0b", b"\x0a\xff\xff\xff\xff\x0f", b"", b"\xff" * 20):
        with pytest.raises(CheckpointError, match="sentencepiece"):
            from_model(broken)
