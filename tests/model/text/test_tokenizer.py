"""Text to ids and back, and the promise that text never becomes control tokens."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from edgerun.errors import BundleError, InputError, PromptError, UnsupportedError
from edgerun.model.chat.disguise import make_disguises
from edgerun.model.text.library import Library
from edgerun.model.text.tokenizer import Tokenizer
from tests.support import fakes

JSONS = {
    "byte-level": fakes.byte_tokenizer_json(),
    "spm": fakes.spm_tokenizer_json(),
    "spm-first": fakes.spm_tokenizer_json(prepend="first"),
    "spm-never": fakes.spm_tokenizer_json(prepend="never"),
    "unigram": fakes.unigram_tokenizer_json(),
}
TOKENIZERS = {name: Tokenizer.from_json(text) for name, text in JSONS.items()}
RUST = {name: RustTokenizer.from_str(text) for name, text in JSONS.items()}
CONTROLS = {
    name: [token["content"] for token in json.loads(text)["added_tokens"]]
    for name, text in JSONS.items()
}
# Control tokens and pieces of them, mixed with text.
PARTS = ["<", "|", ">", "<|", "|>", "im_end", "</", "s", "s>", "unk", " ", "a", "é", "😀", "\n"]


def hostile(name: str) -> st.SearchStrategy[str]:
    parts = st.sampled_from([*PARTS, *CONTROLS[name]])
    return st.lists(st.one_of(parts, st.text(max_size=3)), max_size=8).map("".join)


def control_ids(name: str) -> set[int]:
    rust = RUST[name]
    unknown = rust.token_to_id("<unk>")
    return {rust.token_to_id(token) for token in CONTROLS[name]} - {unknown}


def hugging_face_ids(name: str, text: str) -> list[int]:
    return RUST[name].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", JSONS)
@given(data=st.data())
def test_text_never_becomes_control_tokens(name: str, data: st.DataObject) -> None:
    text = data.draw(hostile(name))
    assert control_ids(name).isdisjoint(TOKENIZERS[name].encode(text, bos=False))


@pytest.mark.parametrize("name", JSONS)
@given(data=st.data())
def test_protected_content_adds_no_control_tokens_to_a_template(
    name: str, data: st.DataObject
) -> None:
    control = CONTROLS[name][-1]
    # What surrounds content in a template may be half a control token.
    around = st.sampled_from(["", control, control[:-1], control[0], control[1:], "user\n"])
    before, after = data.draw(around), data.draw(around)
    content = data.draw(hostile(name))
    tokenizer = TOKENIZERS[name]
    alone = [before, after]
    expected = sum(
        id_ in control_ids(name) for part in alone for id_ in tokenizer.encode_template(part)
    )
    for disguise in make_disguises(tokenizer.controls, [content]):
        text = before + disguise.hide(content) + after
        ids = tokenizer.encode_template(text, disguise.reveal)
        if content:
            assert sum(id_ in control_ids(name) for id_ in ids) == expected


@pytest.mark.parametrize("name", JSONS)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<")))
def test_ordinary_text_has_the_ids_that_tokenizers_gives(name: str, text: str) -> None:
    assert TOKENIZERS[name].encode(text, bos=False) == hugging_face_ids(name, text)


@pytest.mark.parametrize("name", JSONS)
@given(data=st.data())
def test_templates_have_the_ids_that_tokenizers_gives(name: str, data: st.DataObject) -> None:
    parts = st.sampled_from([*CONTROLS[name], " a", "im", "user\n", "\n", " ", "é"])
    text = "".join(data.draw(st.lists(parts, max_size=8)))
    if name == "unigram":  # its model makes control tokens of text; ours must not
        text = text.replace("é", "e")
    assert TOKENIZERS[name].encode_template(text) == hugging_face_ids(name, text)


@pytest.mark.parametrize("name", ["byte-level", "spm", "spm-first", "spm-never"])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_survives_a_round_trip(name: str, text: str) -> None:
    if "▁" in text:  # SentencePiece cannot tell it from a space
        return
    if name == "spm-first" and text.startswith(" "):  # " a" and "a" have the same ids there
        return
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text


@pytest.mark.parametrize("name", JSONS)
@given(data=st.data())
def test_a_stream_joins_to_the_whole_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stream = tokenizer.stream()
    pieces = [*map(stream.push, ids), stream.finish()]
    assert "".join(pieces) == tokenizer.decode(ids)
    # Only bytes that are no UTF-8 give U+FFFD, and never before they are known to be wrong.
    data_bytes = b"".join(map(tokenizer.token_bytes, ids))
    assert "".join(pieces).lstrip(" ") == data_bytes.decode("utf-8", "replace").lstrip(" ")


@pytest.mark.parametrize("name", ["byte-level", "spm", "spm-first", "spm-never"])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20))
def test_decoding_agrees_with_tokenizers_on_whole_characters(name: str, text: str) -> None:
    ids = hugging_face_ids(name, text)
    assert TOKENIZERS[name].decode(ids) == RUST[name].decode(ids)


def test_control_tokens_that_give_no_text_have_no_bytes() -> None:
    tokenizer = fakes.byte_tokenizer()
    assert [tokenizer.token_bytes(id_) for id_ in (65, 200, fakes.END, fakes.THINK, 10**6)] == [
        b"A",
        b"\xc8",
        b"",
        b"<think>",
        b"",
    ]


def test_an_unfinished_character_is_held_back_and_shown_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    stream = tokenizer.stream()
    euro = "€".encode()
    assert [stream.push(byte) for byte in euro] == ["", "", "€"]
    assert stream.push(euro[0]) == ""
    assert stream.finish() == "\ufffd"


def test_a_continuation_keeps_its_leading_space() -> None:
    tokenizer = TOKENIZERS["spm"]
    ids = tokenizer.encode("a", bos=False)
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, continues=True) == " a"


def test_a_mark_stands_for_a_token_hidden_or_not() -> None:
    marked = {fakes.START: "[start]", fakes.THINK: "[think]"}
    stream = fakes.byte_tokenizer().stream(marked=marked)
    ids = [104, fakes.START, 0xE2, fakes.THINK, fakes.END, 105]
    pieces = ["h", "[start]", "", "\ufffd[think]", "", "i"]
    assert [stream.push(id_) for id_ in ids] == pieces


@pytest.mark.parametrize("name", ["spm", "spm-first"])
def test_a_mark_at_the_beginning_changes_no_space(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for first in (1, 80):  # a hidden token, and a letter
        ids = [first, *tokenizer.encode("a b", bos=False)]
        stream = tokenizer.stream(marked={first: tokenizer.decode([first])})
        assert "".join(map(stream.push, ids)) == tokenizer.decode(ids)


def test_special_tokens_are_left_out_of_text_and_others_are_not() -> None:
    tokenizer = fakes.byte_tokenizer()
    assert tokenizer.decode([fakes.START, 104, fakes.THINK, 105, fakes.END]) == "h<think>i"


def test_bos_and_eos_come_from_the_configuration() -> None:
    tokenizer = fakes.byte_tokenizer()
    assert tokenizer.bos_ids == (fakes.BOS,)
    assert tokenizer.eos_ids == (fakes.END,)
    assert tokenizer.encode("a") == [fakes.BOS, 97]
    assert fakes.byte_tokenizer(add_bos_token=False).bos_ids == ()


def test_bos_comes_from_the_post_processor_when_the_configuration_is_silent() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|bos|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|bos|>": {"id": "<|bos|>", "ids": [256], "tokens": ["<|bos|>"]},
            "<|im_end|>": {"id": "<|im_end|>", "ids": [258], "tokens": ["<|im_end|>"]},
        },
    }
    assert Tokenizer.from_json(json.dumps(content)).bos_ids == (256,)


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = Tokenizer.from_json(json.dumps(content))
    assert len(tokenizer.encode("abcdefgh", bos=False)) == 8


def test_spaces_around_a_control_token_belong_to_it_where_the_file_says_so() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    for token in content["added_tokens"]:
        token["rstrip"] = True
    text = "<|im_start|>  \n a <|im_end|> b"
    rust = RustTokenizer.from_str(json.dumps(content))
    ours = Tokenizer.from_json(json.dumps(content))
    assert ours.encode_template(text) == rust.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("value", ["x", 1.5, [], None, True, b"1"])
def test_what_is_no_id_is_named(value: Any) -> None:
    tokenizer = fakes.byte_tokenizer()
    for call in (
        tokenizer.token_bytes,
        tokenizer.spelled_bytes,
        lambda id_: tokenizer.decode([id_]),
    ):
        with pytest.raises(InputError, match=f"an id is {re.escape(repr(value))}; expected a who"):
            call(value)
    with pytest.raises(InputError, match="ids are 5; expected several whole numbers"):
        tokenizer.decode(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ids are array\(5\); expected several whole numbers"):
        tokenizer.decode(np.array(5))


def test_ids_of_numpy_are_ids() -> None:
    tokenizer = fakes.byte_tokenizer()
    ids = np.array([97, 98], np.uint16)
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.token_bytes(ids[0]) == b"a"


@pytest.mark.parametrize("value", [5, None, b"a", ["a"]])
def test_what_is_no_text_is_named(value: Any) -> None:
    tokenizer = fakes.byte_tokenizer()
    with pytest.raises(PromptError, match=f"is {re.escape(repr(value))}; expected a string"):
        tokenizer.encode(value)
    with pytest.raises(InputError, match=f"a token is {re.escape(repr(value))}; expected its"):
        tokenizer.token_id(value)


def test_surrogates_are_a_prompt_error() -> None:
    with pytest.raises(PromptError, match="surrogate"):
        TOKENIZERS["byte-level"].encode("a\ud800b")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"model": {"type": "BPE"}}', "\x00"])
def test_broken_files_are_a_bundle_error(text: str) -> None:
    with pytest.raises(BundleError, match="tokenizer.json cannot be read"):
        Tokenizer.from_json(text)


@settings(max_examples=150)
@given(data=st.data())
def test_mutated_files_give_a_tokenizer_or_a_clear_error(data: st.DataObject) -> None:
    text = JSONS[data.draw(st.sampled_from(sorted(JSONS)))]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 200))
    changed = text[:start] + data.draw(st.text(max_size=5)) + text[start + length :]
    with contextlib.suppress(BundleError, UnsupportedError):
        Tokenizer.from_json(changed)


def test_a_decoder_for_other_kinds_of_models_is_unsupported() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(UnsupportedError, match="WordPiece"):
        Tokenizer.from_json(json.dumps(content))


def test_single_characters_and_runs_of_spaces_in_a_vocabulary_are_text() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    added = {**content["added_tokens"][0], "special": False}
    for index, text in enumerate(["→", "語", "    "]):
        content["added_tokens"].append({**added, "id": 260 + index, "content": text})
    tokenizer = Tokenizer.from_json(json.dumps(content))
    ids = tokenizer.encode("a→語    b", bos=False)
    assert ids == [97, 260, 261, 262, 98]
    assert tokenizer.decode(ids) == "a→語    b"


def test_runs_of_spaces_that_sentencepiece_spells_are_text() -> None:
    """As Gemma's vocabularies add them, beside what they have for the same texts."""
    runs = ["\u2581" * count for count in (2, 4)]
    content = json.loads(
        fakes.spm_tokenizer_json(prepend="never", merges=[("▁", "▁"), ("▁▁", "▁▁")])
    )
    vocabulary, flags = content["model"]["vocab"], content["added_tokens"][0]
    for run in runs:
        content["added_tokens"].append(
            {**flags, "id": vocabulary[run], "content": run, "special": False}
        )
    text = json.dumps(content)
    tokenizer, rust = Tokenizer.from_json(text), RustTokenizer.from_str(text)
    for said in ("a      b", "if x:\n    y", "▁▁"):
        ids = tokenizer.encode(said, bos=False)
        assert vocabulary[runs[0]] in ids or vocabulary[runs[1]] in ids
        assert ids == rust.encode(said, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == rust.decode(ids) == said.replace("▁", " ")
    assert tokenizer.token_bytes(vocabulary[runs[1]]) == b"    "


def test_words_with_vowel_signs_in_a_vocabulary_are_text() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    added = {**content["added_tokens"][0], "special": False, "id": 260, "content": "नमस्ते"}
    content["added_tokens"].append(added)
    assert Tokenizer.from_json(json.dumps(content)).encode("नमस्ते", bos=False) == [260]


def test_a_special_token_of_one_character_cannot_be_injected() -> None:
    content = json.loads(fakes.byte_tokenizer_json())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 260, "content": "→"})
    tokenizer = Tokenizer.from_json(json.dumps(content))
    for disguise in make_disguises(tokenizer.controls, ["a→b"]):
        hidden = disguise.hide("a→b")
        assert 260 not in tokenizer.encode_template(hidden, disguise.reveal)
    assert 260 not in tokenizer.encode("a→b")


def test_a_handler_of_a_signal_may_encode_while_its_thread_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for itself, it would have all other threads wait as well."""
    library = Library(fakes.byte_tokenizer_json())
    encode, nested = library._encode, [["b"]]

    def interrupted(text: str, *, first: bool) -> list[int]:
        assert not nested or library.encode(nested.pop(), [True]) == [[98]]
        return encode(text, first=first)

    monkeypatch.setattr(library, "_encode", interrupted)
    assert library.encode(["a"], [True]) == [[97]]
