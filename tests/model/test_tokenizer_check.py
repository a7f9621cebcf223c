"""Tokenizers of foreign files: what multiplies text or work is refused, what is long is known."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from edgerun.errors import BundleError, PromptError
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.text import tokenizer as tokenizer_module
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.model.text.tokenizer_check import MAX_STEPS, TextBounds, check_tokenizer_json
from tests import fakes

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def tokenizer_json(**parts: Any) -> str:
    content = json.loads(fakes.byte_tokenizer_json())
    model = parts.pop("model", {})
    return json.dumps({**content, **parts, "model": {**content["model"], **model}})


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def split(regex: str) -> dict[str, Any]:
    step = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, LEVEL]}


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
    "many steps": {"normalizer": sequence(*[{"type": "NFC"}] * (MAX_STEPS + 1))},
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
    "long words": {
        "model": {
            "type": "WordPiece",
            "unk_token": "<think>",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 10**9,
            "vocab": {"<think>": 0},
        }
    },
    "long tokens": {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * 9000, 0.0]]}
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_multiplies_text_or_work_is_refused_unread(name: str) -> None:
    text = tokenizer_json(**BOMBS[name])
    began = time.process_time()
    with pytest.raises(BundleError, match=r"tokenizer\.json .* at most \d+ make sense"):
        Tokenizer.from_json(text)
    assert time.process_time() - began < 1  # it takes milliseconds; what it prevents, minutes


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"model": 1}', '{"model": {"type": "BPE"}, "normalizer": 3}', '"\ud800"']
    + ['{"model": {}, "normalizer": {"type": "Sequence", "normalizers": [1]}}', "[" * 100_000],
)
def test_what_is_no_tokenizer_is_a_bundle_error(text: str) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read"):
        check_tokenizer_json(text)


def test_growth_that_is_allowed_is_measured_before_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer.from_json(tokenizer_json(normalizer=sequence(*[DOUBLING] * 10)))
    assert len(tokenizer.encode("a", bos=False)) == 1024
    assert len(tokenizer.encode("b" * 20_000, bos=False)) == 20_000
    with pytest.raises(BundleError, match=r"makes more than \d+ bytes of a text of 20000 bytes"):
        tokenizer.encode("a" * 20_000)
    with pytest.raises(BundleError, match="makes more than"):
        tokenizer.encode_template("a" * 20_000)


def test_a_panic_of_the_library_is_a_sentence() -> None:
    tokenizer = Tokenizer.from_json(tokenizer_json(pre_tokenizer=split("(a+)+$")))
    assert tokenizer.encode("hello", bos=False)
    with pytest.raises(BundleError, match=r"tokenizer\.json fails on this text: .*retry-limit"):
        tokenizer.encode("a" * 40 + "b")
    assert tokenizer.encode("hello", bos=False)


def test_a_tokenizer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, ended = fakes.byte_tokenizer(), threading.Event()
    monkeypatch.setattr(tokenizer_module, "WALL_S", 0.02)
    monkeypatch.setattr(tokenizer, "_encode_run", lambda text, first: ended.wait(60))
    with pytest.raises(BundleError, match=r"needs more than 1 s for a text of 5000 bytes"):
        tokenizer.encode("a" * 5000)
    ended.set()
    monkeypatch.undo()
    assert tokenizer.encode("hello", bos=False)


class Endless:
    """The library, busy with one call for as long as nobody ends it, and interrupted as it begins.

    ``encode_batch_fast`` is the call that lets other threads run meanwhile, the main one included.
    """

    def __init__(self, rust: RustTokenizer) -> None:
        self.rust, self.ended = rust, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rust, name)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        while not self.ended.is_set():
            result = self.rust.encode_batch_fast(texts, **options)
        return result


def test_ctrl_c_does_not_wait_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fakes.byte_tokenizer()
    library = Endless(tokenizer._rust)
    monkeypatch.setattr(tokenizer, "_rust", library)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("hello brave new world " * 1000)
    working = [each for each in threading.enumerate() if each.name == "edgerun-limited"]
    assert working
    library.ended.set()
    for thread in working:
        thread.join()


@pytest.mark.parametrize("text", ["hello you", "x" * 5000 + " <|im_end|> \U0001f600"])
def test_long_and_short_texts_have_the_ids_that_tokenizers_gives(text: str) -> None:
    rust = RustTokenizer.from_str(tokenizer_json(added_tokens=[]))
    expected = rust.encode(text, add_special_tokens=False).ids
    assert fakes.byte_tokenizer().encode(text, bos=False) == expected


@pytest.mark.parametrize("long", [False, True])
def test_surrogates_are_a_prompt_error_at_any_length(long: bool) -> None:
    with pytest.raises(PromptError, match="surrogate"):
        fakes.byte_tokenizer().encode("a" * (5000 if long else 1) + "\ud800")


@pytest.mark.parametrize(
    ("regex", "backtracks"),
    [
        ("(a+)+$", True),
        (r"\s*\s*\s*\s*\s*x", True),
        (r"(?:a|b)*c", True),
        (r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", False),
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            False,
        ),
    ],
)
def test_expressions_that_may_backtrack_are_known(regex: str, backtracks: bool) -> None:
    assert check_tokenizer_json(tokenizer_json(pre_tokenizer=split(regex))).backtracks == backtracks


def test_a_text_too_long_for_the_library_is_refused() -> None:
    with pytest.raises(PromptError, match=r"has 16777217 bytes; at most 16777216"):
        fakes.byte_tokenizer().encode("a" * ((16 << 20) + 1))


@pytest.mark.parametrize(
    ("parts", "bounds"),
    [
        ({}, TextBounds(3, 1.0, "ByteLevel")),
        ({"normalizer": {"type": "NFC"}}, TextBounds(9, 3.0, "ByteLevel")),
        ({"normalizer": {"type": "StripAccents"}}, TextBounds(3, None, "ByteLevel")),
        ({"normalizer": replace({"String": "abc"}, "d")}, TextBounds(3, 3.0, "ByteLevel")),
        ({"normalizer": replace({"String": "abc"}, "")}, TextBounds(3, None, "ByteLevel")),
        ({"normalizer": replace({"Regex": " +"}, " ")}, TextBounds(6, None, "ByteLevel")),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(7)}},
            TextBounds(21, None, "ByteLevel"),
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, TextBounds(1, None, None)),
        (
            {"pre_tokenizer": None, "model": {"byte_fallback": True}},
            TextBounds(1, 1.0, "ByteFallback"),
        ),
        ({"model": {"continuing_subword_prefix": "##"}}, TextBounds(3, 1.0, None)),
    ],
)
def test_what_steps_make_of_a_text_is_bounded(parts: dict[str, Any], bounds: TextBounds) -> None:
    assert check_tokenizer_json(tokenizer_json(**parts)) == bounds


TOKENIZERS = {
    "byte-level": Tokenizer.from_json(
        tokenizer_json(normalizer={"type": "NFC"}, model={"merges": []})
    ),
    "spm": Tokenizer.from_json(fakes.spm_tokenizer_json()),
    "unigram": Tokenizer.from_json(fakes.unigram_tokenizer_json()),
    "swallowing": Tokenizer.from_json(
        fakes.byte_tokenizer_json().replace('"rstrip": false', '"rstrip": true')
    ),
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


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = fakes.byte_tokenizer()
    monkeypatch.setattr(tokenizer, "_encode_run", None)
    words = r"has 20000000 bytes, which are at least 1666667 tokens, and the context is 512"
    with pytest.raises(PromptError, match=words) as caught:
        tokenizer.check_fits("a" * 20_000_000, 512)
    assert (caught.value.tokens, caught.value.context) == (1666667, 512)
    chat_format = ChatFormat(tokenizer, ChatTemplate(fakes.CHATML))
    monkeypatch.setattr(chat_format, "_render", None)
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
