"""Tokenizers of foreign files: what multiplies text is refused, what is long is known."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from edgerun.errors import BundleError, PromptError
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.model.text.tokenizer_check import TextBounds, check_tokenizer_json
from tests.support import fakes


def tokenizer_json(**parts: Any) -> str:
    content = json.loads(fakes.byte_tokenizer_json())
    model = parts.pop("model", {})
    return json.dumps({**content, **parts, "model": {**content["model"], **model}})


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def split(behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": "a"}, "behavior": behavior, "invert": False}


def charsmap(longest: int) -> str:
    return base64.b64encode(bytes(4) + b"ab\0" + b"x" * longest + b"\0").decode()


DOUBLING = replace({"String": "a"}, "aa")
BOMBS: dict[str, dict[str, Any]] = {
    "one long replacement": {"normalizer": replace({"String": "a"}, "a" * 100_000)},
    "doubled twenty times": {"normalizer": sequence(*[DOUBLING] * 20)},
    "nested": {"normalizer": sequence(sequence(*[DOUBLING] * 9), sequence(*[DOUBLING] * 9))},
    "at every place": {"normalizer": replace({"Regex": ""}, "a" * 50_000)},
    "long prefix": {"normalizer": {"type": "Prepend", "prepend": "a" * 50_000}},
    "rules": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(50_000)}},
    "long added token": {
        "normalizer": replace({"String": "a"}, "a" * 1000),
        "added_tokens": [
            {
                "id": 400,
                "content": "a" * 5000,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": True,
                "special": False,
            }
        ],
    },
    "affix": {"model": {"end_of_word_suffix": "x" * 1000}},
    "prefix of pieces": {"model": {"continuing_subword_prefix": "x" * 1000}},
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_multiplies_text_is_refused_unread(name: str) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json .* at most \d+ make sense"):
        check_tokenizer_json(tokenizer_json(**BOMBS[name]))


@pytest.mark.parametrize("kind", ["SEQUENCE", "fuse", None, [["NFC"]], "x" * 10_000])
def test_a_step_that_the_library_would_take_for_another_one_is_refused(kind: Any) -> None:
    step = {"type": kind, "normalizers": [DOUBLING] * 6}
    with pytest.raises(BundleError, match=r"tokenizer\.json has a step of type ") as caught:
        check_tokenizer_json(tokenizer_json(normalizer=step))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"model": 1}', '{"model": {"type": "BPE"}, "normalizer": 3}', '"\ud800"']
    + ['{"model": {}, "normalizer": {"type": "Sequence", "normalizers": [1]}}', "[" * 100_000],
)
def test_what_is_no_tokenizer_is_a_bundle_error(text: str) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read"):
        check_tokenizer_json(text)


def test_a_text_of_which_the_steps_may_make_too_much_is_refused() -> None:
    tokenizer = Tokenizer.from_json(tokenizer_json(normalizer=sequence(*[DOUBLING] * 10)))
    assert len(tokenizer.encode("a", bos=False)) == 1024
    most = (16 << 20) * 16 // 3072  # 3 bytes for one by ByteLevel
    assert len(tokenizer.encode("b" * most, bos=False)) == most
    with pytest.raises(PromptError, match=rf"has {most + 1} bytes; at most {most} are encoded"):
        tokenizer.encode("b" * (most + 1))
    with pytest.raises(PromptError, match="at most"):
        tokenizer.encode_template("<|im_start|>".join(["b" * most, "b"]))


@pytest.mark.parametrize("text", ["hello you", "x" * 5000 + " <|im_end|> \U0001f600"])
def test_long_and_short_texts_have_the_ids_that_tokenizers_gives(text: str) -> None:
    rust = RustTokenizer.from_str(tokenizer_json(added_tokens=[]))
    expected = rust.encode(text, add_special_tokens=False).ids
    assert fakes.byte_tokenizer().encode(text, bos=False) == expected


@pytest.mark.parametrize("long", [False, True])
def test_surrogates_are_a_prompt_error_at_any_length(long: bool) -> None:
    with pytest.raises(PromptError, match="surrogate"):
        fakes.byte_tokenizer().encode("a" * (5000 if long else 1) + "\ud800")


def test_a_text_too_long_for_the_library_is_refused() -> None:
    with pytest.raises(PromptError, match=r"has 16777217 bytes; at most 16777216"):
        fakes.byte_tokenizer().encode("a" * ((16 << 20) + 1))


@pytest.mark.parametrize(
    ("parts", "bounds"),
    [
        ({}, TextBounds(3, 1.0, "ByteLevel")),
        ({"normalizer": {"type": "NFC"}}, TextBounds(9, 3.0, "ByteLevel", True)),
        ({"normalizer": {"type": "StripAccents"}}, TextBounds(3, None, "ByteLevel", True)),
        ({"normalizer": replace({"String": "abc"}, "d")}, TextBounds(3, 3.0, "ByteLevel", True)),
        ({"normalizer": replace({"String": "abc"}, "")}, TextBounds(3, None, "ByteLevel", True)),
        ({"normalizer": replace({"Regex": " +"}, " ")}, TextBounds(6, None, "ByteLevel", True)),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(7)}},
            TextBounds(21, None, "ByteLevel", True),
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, TextBounds(1, None, None, True)),
        ({"pre_tokenizer": split("Removed")}, TextBounds(1, None, None)),
        ({"pre_tokenizer": split("Isolated")}, TextBounds(1, 1.0, None)),
        (
            {"pre_tokenizer": None, "model": {"byte_fallback": True}},
            TextBounds(1, 1.0, "ByteFallback"),
        ),
        ({"model": {"continuing_subword_prefix": "##"}}, TextBounds(3, 1.0, None)),
    ],
)
def test_what_steps_make_of_a_text_is_bounded(parts: dict[str, Any], bounds: TextBounds) -> None:
    assert check_tokenizer_json(tokenizer_json(**parts)) == bounds


def without(missing: bytes) -> str:
    """A tokenizer whose vocabulary lacks bytes, as cut ones do."""
    file = json.loads(fakes.byte_tokenizer_json())
    vocabulary = file["model"]["vocab"]
    file["model"]["vocab"] = {
        spelling: id_ for spelling, id_ in vocabulary.items() if id_ not in missing
    }
    return json.dumps(file)


TOKENIZERS = {
    "byte-level": Tokenizer.from_json(
        tokenizer_json(normalizer={"type": "NFC"}, model={"merges": []})
    ),
    "spm": Tokenizer.from_json(fakes.spm_tokenizer_json()),
    "unigram": Tokenizer.from_json(fakes.unigram_tokenizer_json()),
    "swallowing": Tokenizer.from_json(
        fakes.byte_tokenizer_json().replace('"rstrip": false', '"rstrip": true')
    ),
    "without some bytes": Tokenizer.from_json(without(b"ace\xe1")),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    text=st.text(
        alphabet=st.one_of(
            st.sampled_from(" \nae\u0301\u1100\u1161\u11a8<|>"),
            st.characters(exclude_categories=["Cs"]),
        )
    )
)
def test_a_text_never_has_fewer_tokens_than_its_length_says(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, bos=False))
    rendered = f"<|im_start|>{text}  <|im_end|>"
    assert tokenizer.fewest_tokens(rendered) <= len(tokenizer.encode_template(rendered))


def test_the_bound_is_the_longest_token() -> None:
    tokenizer = fakes.byte_tokenizer()  # of single bytes, and of <|im_start|>
    assert tokenizer.fewest_tokens("a" * 1200) == 100
    assert Tokenizer.from_json(tokenizer_json(normalizer={"type": "Nmt"})).fewest_tokens("a") == 0


def test_bytes_that_no_token_has_count_as_nothing() -> None:
    tokenizer = Tokenizer.from_json(without(b"x"))
    assert tokenizer.encode("axxb", bos=False) == list(b"ab")
    assert tokenizer.fewest_tokens("ax" * 1200) == 100
    changed = json.loads(without(b"x")) | {"normalizer": {"type": "NFC"}}
    assert Tokenizer.from_json(json.dumps(changed)).fewest_tokens("a" * 1200) == 0


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = fakes.byte_tokenizer()
    monkeypatch.setattr(tokenizer, "_encode_sequences", None)
    words = r"has 20000000 bytes, which are at least 1666667 tokens, and the context is 512"
    with pytest.raises(PromptError, match=words) as caught:
        tokenizer.check_fits("a" * 20_000_000, 512)
    assert (caught.value.tokens, caught.value.context) == (1666667, 512)
    chat_format = ChatFormat(tokenizer, ChatTemplate(fakes.CHATML))
    monkeypatch.setattr(chat_format, "_rendered", None)
    with pytest.raises(PromptError, match=words):
        chat_format.encode([{"role": "user", "content": "a" * 20_000_000}], context=512)
    tokenizer.check_fits("a" * 6000, 512)


def test_a_long_history_that_a_template_drops_is_no_reason_to_refuse() -> None:
    template = ChatTemplate("{{ messages[-1].content }}")
    chat_format = ChatFormat(fakes.byte_tokenizer(), template)
    messages = [
        {"role": "assistant", "content": "a" * 10_000},
        {"role": "user", "content": "b"},
    ]
    assert len(chat_format.encode(messages, context=64).ids) == 1
    with pytest.raises(PromptError, match="and the context is 64"):
        chat_format.encode(messages[:1], context=64)


def test_real_tokenizers_pass(repo_root: Path, shared_data: Path) -> None:
    paths = [
        *repo_root.glob("models/*/bundle/tokenizer.json"),
        *shared_data.glob("tokenizers/**/tokenizer.json"),
        *shared_data.glob("models/**/tokenizer.json"),
    ]
    assert len(paths) >= 4
    for path in paths:
        assert check_tokenizer_json(path.read_text("utf-8")).growth <= 16
