"""GGUF vocabularies: llama.cpp's own cases on real ones, and tiny ones made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.checkpoint.files import ByteFile
from edgerun_export.checkpoint.gguf_header import read_header
from edgerun_export.tokenizers import from_gguf
from edgerun_export.tokenizers.byte_level import CUTS, find_cut

tokenizers = pytest.importorskip("tokenizers")
REAL = ["deepseek-coder", "gpt-2", "llama-spm", "phi-3", "starcoder"]


def load(files: dict[str, bytes]) -> Any:
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())


@pytest.mark.parametrize("name", REAL)
def test_encodes_llama_cpp_s_cases(shared_data: Path, name: str) -> None:
    path = shared_data / "tokenizers" / f"ggml-vocab-{name}.gguf"
    file = ByteFile(path)
    metadata = read_header(file).metadata
    file.close()
    tokenizer = load(from_gguf(metadata))
    cases = Path(f"{path}.inp").read_text().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    assert len(cases) == len(lines) == 47
    for text, line in zip(cases, lines, strict=True):
        expected = [int(token) for token in line.split()]
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text
        assert tokenizer.decode(expected) == text
    assert tokenizer.get_vocab_size() == len(metadata["tokenizer.ggml.tokens"])


def test_phi3_s_control_tokens_and_template(shared_data: Path) -> None:
    file = ByteFile(shared_data / "tokenizers" / "ggml-vocab-phi-3.gguf")
    files = from_gguf(read_header(file).metadata)
    file.close()
    tokenizer = load(files)
    assert tokenizer.encode("<|user|>", add_special_tokens=False).ids == [32010]
    assert tokenizer.encode("hi").ids[0] == 1
    # A padding token of type "unknown" is not to be found in text.
    assert len(tokenizer.encode("[PAD32011]", add_special_tokens=False).ids) > 1
    assert "<|user|>" in json.loads(files["tokenizer_config.json"])["chat_template"]
    assert json.loads(files["generation_config.json"])["eos_token_id"] == [32000, 32007]


CHAT = "<|user|>\nHi<|end|>\n<|assistant|>\n"


def test_phi3_s_chats_are_those_of_llama_cpp(shared_data: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    path = shared_data / "tokenizers" / "ggml-vocab-phi-3.gguf"
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    expected = theirs.tokenize(CHAT.encode(), add_bos=False, special=True)
    file = ByteFile(path)
    files = from_gguf(read_header(file).metadata)
    file.close()
    assert load(files).encode(CHAT, add_special_tokens=False).ids == expected


@pytest.mark.parametrize(
    ("name", "strips"),
    [
        ("Phi3", True),
        ("Phi-3-mini-4k-instruct", True),
        ("Phi 3.5 Mini Instruct", True),
        ("Phi 4 Mini Instruct", False),
    ],
)
def test_added_tokens_of_phi3_take_ends_of_lines_along(name: str, strips: bool) -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "H", "\u2581H", "\n", "<|endoftext|>", "<|user|>"]
    metadata = {
        "general.name": name,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": -np.arange(9.0),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 1, 1, 3, 3], np.int32),
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = load(from_gguf(metadata))
    stripped, whole = [5], [3, 6, 4]
    ids = tokenizer.encode("<|user|>\nH", add_special_tokens=False).ids
    assert ids == [8, *(stripped if strips else whole)]
    assert tokenizer.encode("<|endoftext|>\nH", add_special_tokens=False).ids == [7, *whole]


def byte_alphabet() -> list[str]:
    """GPT-2's letters for the 256 bytes (``bytes_to_unicode``)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [value for value in range(256) if value not in plain]
    return [chr(value) for value in plain] + [chr(256 + index) for index in range(len(rest))]


def tiny(pre: str | None = "gpt-2", **others: Any) -> dict[str, Any]:
    merges = ["1 1", "11 1", "Ġ 1", "1 .", "Ġ a", "a a"]
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    tokens += ["111111", "<|end|>", "<tool>", "<|begin|>"]
    count = len(tokens)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": np.array([1] * (count - 3) + [3, 4, 3], np.int32),
        "tokenizer.ggml.bos_token_id": count - 1,
        "tokenizer.ggml.eos_token_id": count - 3,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in others.items()}


WORDS = {
    "gpt-2": ["11", "11", "11", "Ġ", "11", ".", ".", "a"],
    "default": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "starcoder": ["1", "1", "1", "1", "1", "1", "Ġ", "1", "1", ".", ".", "a"],
    "qwen2": ["1", "1", "1", "1", "1", "1", "Ġ", "1", "1", ".", ".", "a"],
    "llama-bpe": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "dbrx": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "deepseek-coder": ["1", "1", "1", "1", "1", "1", "Ġ", "1", "1", ".", ".", "a"],
    "deepseek-llm": ["11", "11", "11", "Ġ", "11", ".", ".", "a"],
    "glm4": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "deepseek-v3": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "gigachat": ["11", "11", "11", "Ġ", "11", ".", ".", "a"],
    "jais-2": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "joyai-llm": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "kanana2": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "tiny_aya": ["111", "111", "Ġ", "11", ".", ".", "a"],
    "hunyuan-dense": ["111", "111", "Ġ", "11", ".", ".", "a"],
}


@pytest.mark.parametrize("pre", WORDS)
def test_cuts_text_as_the_model_was_trained(pre: str) -> None:
    tokenizer = load(from_gguf(tiny(pre)))
    got = tokenizer.encode("111111 11..a", add_special_tokens=False).tokens
    assert got == WORDS[pre]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("jais-2", " \n\n  12345", [" \n\n", " ", " ", "123", "45"]),
        ("tiny_aya", "12345 it's", ["12", "345", " it's"]),
    ],
)
def test_spaces_and_digits_are_cut_by_their_number(pre: str, text: str, words: list[str]) -> None:
    cuts = find_cut(pre).splits
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts])
    assert [word for word, _ in split.pre_tokenize_str(text)] == words


def test_deepseek_cuts_at_letters_of_some_scripts() -> None:
    from tokenizers import Regex, pre_tokenizers

    cuts = find_cut("deepseek-llm").splits
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts])

    def cut(text: str) -> list[str]:
        return [word for word, _ in words.pre_tokenize_str(text)]

    assert cut("Hello, world! 12345 Привет") == [
        "Hello",
        ",",
        " world",
        "!",
        " ",
        "12345",
        " Привет",
    ]
    # Small letters of Armenian and of mathematics are none of them; ideographs stand alone.
    assert cut("Ա ա, 𝒜b 你好。") == ["Ա", " ա", ",", " 𝒜", "b", " ", "你好", "。"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("bailingmoe2", ["We", "'LL", " go", "  ", " it", "'s", " ", "1", "2", "!?\n\n", "x"]),
        ("seed-coder", ["We", "'LL", " go", "  ", " it", "'s", " ", "1", "2", "!?", "\n\n", "x"]),
        ("minimax-m2", ["We'LL", " go", "  ", " it's", " ", "12", "!?\n\n", "x"]),
    ],
)
def test_endings_digits_and_ends_of_lines_are_cut_as_in(pre: str, expected: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    (regex,) = find_cut(pre).splits
    split = pre_tokenizers.Split(Regex(regex), "isolated")
    words = [word for word, _ in split.pre_tokenize_str("We'LL go   it's 12!?\n\nx")]
    assert words == expected


def test_marks_are_parts_of_words_of_qwen3_5() -> None:
    from tokenizers import Regex, pre_tokenizers

    def cut(pre: str, text: str) -> list[str]:
        (regex,) = find_cut(pre).splits
        split = pre_tokenizers.Split(Regex(regex), "isolated")
        return [word for word, _ in split.pre_tokenize_str(text)]

    # A vowel sign of Devanagari, and an accent behind a dot.
    assert cut("qwen35", "की 12.\u0301a!") == ["की", " ", "1", "2", ".\u0301a", "!"]
    assert cut("qwen2", "की 12.\u0301a!") == ["क", "ी", " ", "1", "2", ".\u0301", "a", "!"]


def test_llama3_takes_whole_words_that_are_tokens() -> None:
    metadata = tiny("llama-bpe")
    metadata["tokenizer.ggml.tokens"][-4] = "aaaa"
    whole, merged = (
        load(from_gguf(metadata)),
        load(from_gguf(metadata | {"tokenizer.ggml.pre": "dbrx"})),
    )
    assert whole.encode("aaaa", add_special_tokens=False).tokens == ["aaaa"]
    assert merged.encode("aaaa").tokens == ["aa", "aa"]
    assert whole.encode("a").tokens == ["<|begin|>", "a"]
    assert merged.encode("a").tokens == ["a"]


@pytest.mark.parametrize(
    ("arch", "begin", "pre", "expected"),
    [
        ("bitnet-b1.58", "<|begin_of_text|>", None, "llama-bpe"),
        ("bitnet-b1.58", "<|begin|>", None, "default"),
        ("llama", "<|begin_of_text|>", None, "default"),
        ("bitnet-b1.58", "<|begin_of_text|>", "qwen2", "qwen2"),
    ],
)
def test_bitnet_with_llama3_s_vocabulary_is_cut_as_llama3(
    arch: str, begin: str, pre: str | None, expected: str
) -> None:
    metadata = tiny(pre) | {"general.architecture": arch}
    metadata["tokenizer.ggml.tokens"][-1] = begin
    named = metadata | {"tokenizer.ggml.pre": expected}
    assert from_gguf(metadata)["tokenizer.json"] == from_gguf(named)["tokenizer.json"]


@pytest.mark.parametrize("pre", sorted(CUTS))
def test_every_cut_loads_and_loses_nothing(pre: str) -> None:
    tokenizer = load(from_gguf(tiny(pre)))
    text = "It's  DON'T\r\n\n naïve 中文字 ١٢٣ a1b2 12345 -- 🦙! \t<tool>x  "
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert "<tool>" in encoded.tokens
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("kimi-k2", ["Hello", "中文", "World's", " 한국어", "漢字", "かな", " ", "123", "45"]),
        ("exaone-moe", ["Hello中文World", "'s", " 한국어漢字かな", " ", "1", "2", "3", "4", "5"]),
        ("solar-open", ["Hello中文World", "'s", " 한국어漢字かな", " ", "1", "2", "3", "4", "5"]),
        ("falcon-h1", ["Hello中文World", "'s", " 한국어漢字かな", " ", "123", "45"]),
    ],
)
def test_words_are_those_of_the_models_own_expressions(pre: str, words: list[str]) -> None:
    text, cut = "Hello中文World's 한국어漢字かな 12345", find_cut(pre)
    pieces = [text]
    for expression in cut.splits:
        split = pre_tokenizers.Split(Regex(expression), "isolated")
        pieces = [word for piece in pieces for word, _ in split.pre_tokenize_str(piece)]
    assert pieces == words


def test_files_without_a_pre_tokenizer_get_the_default() -> None:
    assert from_gguf(tiny(None)) == from_gguf(tiny("default"))


def test_control_tokens_are_special_and_user_defined_are_not() -> None:
    files = from_gguf(tiny(add_bos_token=True, add_eos_token=True, padding_token_id=0))
    tokenizer = load(files)
    assert tokenizer.encode("a").tokens == ["<|begin|>", "a", "<|end|>"]
    encoded = tokenizer.encode("<tool>a<|end|>", add_special_tokens=False)
    assert encoded.tokens == ["<tool>", "a", "<|end|>"]
    assert tokenizer.decode(encoded.ids) == "<tool>a"
    special = json.loads(files["special_tokens_map.json"])
    assert special == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "!"}


def test_a_comma_named_as_begin_token_stays_a_comma() -> None:
    """Some Qwen files do that, with add_bos_token off."""
    metadata = tiny(bos_token_id=tiny()["tokenizer.ggml.tokens"].index(","))
    added = json.loads(from_gguf(metadata)["tokenizer.json"])["added_tokens"]
    assert [token["content"] for token in added] == ["<|end|>", "<tool>", "<|begin|>"]


def test_files_without_token_types_still_have_special_tokens() -> None:
    metadata = tiny()
    del metadata["tokenizer.ggml.token_type"]
    added = json.loads(from_gguf(metadata)["tokenizer.json"])["added_tokens"]
    assert [token["content"] for token in added] == ["<|end|>", "<|begin|>"]
    assert all(token["special"] for token in added)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "t5"}, "'t5' is not supported; supported: llama, gpt2"),
        ({"pre": "martian"}, "pre-tokenizer 'martian' is not supported; supported: default"),
        ({"merges": ["a nope"]}, "merge 'a nope' does not join"),
        ({"merges": ["a"]}, "merge 'a' does not join"),
        ({"merges": 3}, "'tokenizer.ggml.merges' is missing"),
        ({"tokens": ["a", "a"]}, "tokens and 266 types|'a' twice"),
        ({"eos_token_id": 99999}, "eos token's id is 99999"),
        ({"eos_token_id": "x"}, "expected an id"),
        ({"add_bos_token": 7}, "expected a flag"),
        ({"token_type": np.array([1], np.int32)}, "266 tokens and 1 types"),
    ],
)
def test_refuses_contradictions(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgerunError, match=message):
        from_gguf(tiny(**{"pre": "gpt-2"} | change))


def test_a_file_without_vocabulary_is_a_clear_error() -> None:
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        from_gguf({})
    with pytest.raises(UnsupportedError):
        from_gguf({"tokenizer.ggml.model": "rwkv"})
