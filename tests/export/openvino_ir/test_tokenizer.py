"""OpenVINO's tokenizer graph against the tokenizers library, on tokenizers of every family."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from edgerun.errors import CheckpointError, UnsupportedError

pytest.importorskip("openvino_tokenizers")

import openvino  # noqa: E402

from edgerun_export.openvino_ir.tokenizer import write_tokenizer  # noqa: E402
from edgerun_export.tokenizers.byte_level import CUTS  # noqa: E402

pytestmark = pytest.mark.peers

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CORPUS = [*Path(__file__).read_text().splitlines(), *["Ünïcödé façade 你好 世界 🙂"] * 3]
TEXTS = [
    "Once upon a time there was a small house near the sea.",
    "  two  spaces\n\nand\tlines \n",
    "It's 3.14159, isn't it? YES'LL 12345 67 5",
    "Ünïcödé: 你好, мир, こんにちは 🙂👍🏽 e\u0301",
    "def f(x):\n    return x**2  # ok\n",
    "<s>x</s> <u> b<u> <s> <s><s>",
    "</s>after",
    "x\r\ny  \u00a0z",
    "\nx",
    " ",
    "a",
    "",
]


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def cut(name):
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in CUTS[name].splits]
    return pre_tokenizers.Sequence([*splits, byte_level(use_regex=CUTS[name].gpt2_words)])


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


LLAMA_DECODER = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
LLAMA_NORMALIZER = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])

# Normalizer, pre-tokenizer and decoder; those without byte-level parts fall back to bytes.
KINDS = {
    "gpt2": (None, byte_level(), decoders.ByteLevel()),
    "prefix": (None, byte_level(add_prefix_space=True), decoders.ByteLevel()),
    "llama3": (None, cut("llama3"), decoders.ByteLevel()),
    "qwen2": (normalizers.NFC(), cut("qwen2"), decoders.ByteLevel()),
    "starcoder": (None, cut("starcoder"), decoders.ByteLevel()),
    "digits": (
        normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()]),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.Punctuation("isolated"),
                byte_level(),
            ]
        ),
        decoders.ByteLevel(),
    ),
    "llama2": (LLAMA_NORMALIZER, None, LLAMA_DECODER),
    "mistral": (None, metaspace("first", False), LLAMA_DECODER),
    "metaspace": (None, metaspace("always", True), decoders.Metaspace()),
    "never": (None, metaspace("never", True), decoders.Metaspace(prepend_scheme="never")),
}


def tokenizer_of(kind):
    """Trains a small tokenizer and puts a begin token before every text."""
    normalizer, pre_tokenizer, decoder = KINDS[kind]
    bytes_only = isinstance(decoder, decoders.ByteLevel)
    tokenizer = Tokenizer(
        models.BPE() if bytes_only else models.BPE(byte_fallback=True, unk_token="<u>")
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytes_only else [],
        special_tokens=["<s>", "</s>", "<u>", *([] if bytes_only else BYTES)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are ordinary tokens
    begin, text = {"id": "<s>", "type_id": 0}, {"id": "A", "type_id": 0}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": begin}, {"Sequence": text}],
        "pair": [{"Sequence": text}, {"Sequence": {**text, "id": "B"}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    return content


class Graphs:
    """Both graphs of a tokenizer, compiled."""

    def __init__(self, content, folder):
        write_tokenizer(folder, content, 7)
        core = openvino.Core()
        self._encode = core.compile_model(folder / "openvino_tokenizer.xml", "CPU")
        self._decode = core.compile_model(folder / "openvino_detokenizer.xml", "CPU")

    def batch(self, *texts):
        results = self._encode(list(texts))
        return results["input_ids"].tolist(), results["attention_mask"].tolist()

    def encode(self, text):
        return self.batch(text)[0][0]

    def decode(self, ids):
        return self._decode(np.array([ids], np.int64))["string_output"][0]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_the_tokenizers_library(kind, tmp_path):
    content = tokenizer_of(kind)
    expected, graphs = Tokenizer.from_str(json.dumps(content)), Graphs(content, tmp_path)
    for text in TEXTS:
        ids = expected.encode(text).ids
        assert graphs.encode(text) == ids, text
        assert graphs.decode(ids) == expected.decode(ids), text


@pytest.mark.parametrize("name", ["deepseek-coder", "gpt-2", "llama-spm", "phi-3", "starcoder"])
def test_llama_cpp_s_cases(name, shared_data, tmp_path):
    from edgerun_export.checkpoint.files import ByteFile
    from edgerun_export.checkpoint.gguf_header import read_header
    from edgerun_export.tokenizers import from_gguf

    path = shared_data / "tokenizers" / f"ggml-vocab-{name}.gguf"
    file = ByteFile(path)
    content = json.loads(from_gguf(read_header(file).metadata)["tokenizer.json"])
    file.close()
    graphs = Graphs({**content, "post_processor": None}, tmp_path)
    cases = Path(f"{path}.inp").read_text().split("\n__ggml_vocab_test__\n")
    for text, line in zip(cases, Path(f"{path}.out").read_text().split("\n"), strict=True):
        ids = [int(token) for token in line.split()]
        assert graphs.encode(text) == ids, text
        assert graphs.decode(ids) == text


def test_shorter_texts_of_a_batch_are_padded_on_the_left(tmp_path):
    graphs = Graphs(tokenizer_of("gpt2"), tmp_path)
    ids, mask = graphs.batch("a", "abc  def")
    width = len(ids[1])
    assert ids[0] == [7] * (width - 2) + graphs.encode("a")
    assert mask == [[0] * (width - 2) + [1, 1], [1] * width]


def test_special_tokens_leave_no_text(tmp_path):
    graphs = Graphs(tokenizer_of("gpt2"), tmp_path)
    assert graphs.decode([0, *graphs.encode("a b"), 1]) == "a b"


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("normalizer", {"type": "BertNormalizer"}, "the normalizer BertNormalizer"),
        ("pre_tokenizer", {"type": "UnicodeScripts"}, "the pre_tokenizer UnicodeScripts"),
        ("decoder", {"type": "CTC"}, "the decoder CTC"),
        ("post_processor", {"type": "RobertaProcessing"}, "the post_processor RobertaProcessing"),
        ("model", {"type": "Unigram", "vocab": []}, "the model Unigram"),
    ],
)
def test_parts_without_an_implementation_are_named(part, value, named, tmp_path):
    content = {**tokenizer_of("gpt2"), part: value}
    with pytest.raises(UnsupportedError, match=f"cannot compute {named}"):
        write_tokenizer(tmp_path, content, 0)
    assert list(tmp_path.iterdir()) == []


def test_word_endings_are_not_supported(tmp_path):
    content = tokenizer_of("gpt2")
    content["model"]["end_of_word_suffix"] = "</w>"
    with pytest.raises(UnsupportedError, match="the end_of_word_suffix"):
        write_tokenizer(tmp_path, content, 0)


@pytest.mark.parametrize("part", ["normalizer", "model", "added_tokens"])
def test_parts_that_lack_something_are_refused(part, tmp_path):
    content = {**tokenizer_of("gpt2"), part: {"normalizer": {}}.get(part, [{"type": "BPE"}])}
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not complete"):
        write_tokenizer(tmp_path, content, 0)
