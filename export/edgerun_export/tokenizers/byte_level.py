"""Byte-level BPE (GPT-2, Llama 3, Qwen, StarCoder) as ``tokenizer.json``.

How text is cut into words before merging differs by model; GGUF files name the way in
``tokenizer.ggml.pre``. The expressions are those of the models' own ``tokenizer.json`` on the
Hugging Face hub; which name stands for which is llama.cpp's ``llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.tokenizers.cased_letters import CASED_LETTERS
from edgerun_export.tokenizers.vocabulary import (
    Json,
    Vocabulary,
    companions,
    merge_list,
    template,
    tokenizer_json,
)

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
# Long runs of spaces are cut into powers of two.
_JAIS2 = _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + "".join(
    rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")
)
_JAIS2 += r"|\s{1}"
_QWEN2 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_LING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = (
    _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Marks belong to letters, not to what stands between words.
_QWEN35 = _QWEN2.replace(r"\p{L}+|", r"[\p{L}\p{M}]+|").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+{0}|"
    r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*{0}|"
)
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED.replace("{0}", "") + r"\p{N}" + _CASED_REST
_GPT4O = _CASED.replace("{0}", _ENDINGS + "?") + r"\p{N}{1,3}" + _CASED_REST
# Moonshot's tokenization_kimi.py: Han characters are words of their own, and no letters of others.
# There they are subtracted from classes (&&), for which not every library has an expression.
_KIMI = (
    r"[\p{Han}]+|"
    + _CASED.replace("{0}", _ENDINGS + "?")
    .replace(_UPPER, rf"(?:(?!\p{{Han}}){_UPPER})")
    .replace(_LOWER, rf"(?:(?!\p{{Han}}){_LOWER})")
    + r"\p{N}{1,3}"
    + _REST
)
_EXAONE_MOE = (
    _ENDINGS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_IDEOGRAPHS = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_DEEPSEEK3 = r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS


@dataclass(frozen=True, slots=True)
class Cut:
    """A way of cutting text into words.

    Attributes:
        splits: expressions applied one after another; matches and what lies between stay apart.
        gpt2_words: whether GPT-2's own expression follows.
        whole_words: whether a word that is a token is taken as it is, without merging.
        nfc: whether text is composed (Unicode NFC) first.
        add_bos: whether the begin token is added when the file does not say.
    """

    splits: tuple[str, ...] = ()
    gpt2_words: bool = False
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False


_GPT2 = Cut(gpt2_words=True)
_DIGITS = Cut((r"\p{N}",), gpt2_words=True)
_LLAMA = Cut((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN = Cut((_QWEN2,), nfc=True)

CUTS: dict[str, Cut] = {
    # What llama.cpp does when a file names nothing: punctuation apart, GPT-2's words, and digits
    # apart in threes.
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "granite-docling", "exaone4"), _GPT2),
    "gigachat": _GPT2,
    "jais-2": Cut((_JAIS2,)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), _LLAMA),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _LLAMA),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), Cut((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan", "kormo"), _QWEN),
    "qwen35": Cut((_QWEN35,), nfc=True),
    **dict.fromkeys(("stablelm2", "solar-open"), Cut((_QWEN2,))),
    **dict.fromkeys(("bailingmoe", "bailingmoe2"), Cut((_LING,))),
    "seed-coder": Cut((_SEED,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell"), _DIGITS),
    **dict.fromkeys(("exaone", "minerva-7b"), _DIGITS),
    "exaone-moe": Cut((_EXAONE_MOE,)),
    "deepseek-llm": Cut(
        (
            r"[\r\n]",
            rf"\s?[{CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _IDEOGRAPHS,
            r"\p{N}+",
        ),
        add_bos=True,
    ),
    "deepseek-coder": Cut(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}"), add_bos=True
    ),
    "deepseek-v3": Cut(_DEEPSEEK3, add_bos=True),
    **dict.fromkeys(("hunyuan-dense", "joyai-llm"), Cut(_DEEPSEEK3)),
    "tekken": Cut((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2"), Cut((_GPT4O,))),
    # Digits in threes from the right.
    "tiny_aya": Cut((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "kimi-k2": Cut((_KIMI,)),
}


def find_cut(name: str) -> Cut:
    """Look up a value of ``tokenizer.ggml.pre``.

    Raises:
        UnsupportedError: it has no row in ``CUTS``; guessing would garble text silently.
    """
    try:
        return CUTS[name]
    except KeyError:
        raise UnsupportedError(
            f"pre-tokenizer '{name[:60]}' is not supported; supported: {', '.join(CUTS)}"
        ) from None


def build(vocabulary: Vocabulary, merges: Sequence[str], cut: Cut) -> dict[str, bytes]:
    """Write the tokenizer's files.

    Args:
        vocabulary: tokens in GPT-2's byte alphabet (``Ġ`` is a space).
        merges: ``"left right"``, best first.
        cut: how text is cut into words.

    Raises:
        CheckpointError: a merge does not join two tokens into a third.
    """
    post_processor = template(vocabulary) or _byte_level(False, use_regex=True)
    files = companions(vocabulary)
    files["tokenizer.json"] = tokenizer_json(
        vocabulary,
        {"merges": merge_list(merge_pairs(vocabulary, merges)), "ignore_merges": cut.whole_words},
        normalizer={"type": "NFC"} if cut.nfc else None,
        pre_tokenizer=_pre_tokenizer(cut),
        post_processor=post_processor,
        decoder=_byte_level(True, use_regex=True),
    )
    return files


def merge_pairs(vocabulary: Vocabulary, merges: Sequence[str]) -> list[tuple[str, str]]:
    """The two tokens that each merge, ``"left right"``, joins.

    Raises:
        CheckpointError: a merge does not join two tokens into a third.
    """
    tokens = set(vocabulary.tokens)
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left in tokens and right in tokens and left + right in tokens):
            raise CheckpointError(
                f"merge '{merge[:80]}' does not join two tokens of the vocabulary into a third"
            )
        pairs.append((left, right))
    return pairs


def _byte_level(add_prefix_space: bool, *, use_regex: bool) -> Json:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _pre_tokenizer(cut: Cut) -> Json:
    splits: list[Json] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in cut.splits
    ]
    last = _byte_level(False, use_regex=cut.gpt2_words)
    return {"type": "Sequence", "pretokenizers": [*splits, last]} if splits else last
