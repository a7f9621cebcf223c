"""Sentencepiece BPE (Llama 2, Mistral, TinyStories) as ``tokenizer.json``.

Sentencepiece has scores instead of merges: of all neighbours whose concatenation is a piece, it
joins the pair with the highest score, the leftmost of equals (its ``bpe_model.cc``).
``tokenizers`` wants ranked pairs, so every split of every piece becomes a merge, ranked by the
piece's score. Two different pieces with one score are the only thing this cannot express.

Text after an added token gets a space in front like text at the beginning, as in llama.cpp and in
transformers' legacy mode; sentencepiece itself puts one only at the very beginning, and so does
transformers where tokenizer_config.json says that nothing is legacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.tokenizers.vocabulary import (
    Json,
    Kind,
    Vocabulary,
    companions,
    merge_list,
    template,
    tokenizer_json,
)

SPACE = "\u2581"
_MAX_PIECE_CHARS = 1024
# Rebuilding merges tries every split of every piece: a bound on the work, four times the largest
# vocabulary's (Gemma's).
_MAX_TOTAL_CHARS = 1 << 23


def build(
    vocabulary: Vocabulary, scores: Sequence[float], *, prefix: bool, once: bool = False
) -> dict[str, bytes]:
    """Write the tokenizer's files, with merges that follow from scores.

    Args:
        vocabulary: pieces with U+2581 for a space, byte pieces as ``<0x0A>``.
        scores: one a piece; higher joins first.
        prefix: whether a space is put before every text (sentencepiece's ``add_dummy_prefix``).
        once: whether text after an added token gets none.

    Raises:
        CheckpointError: a score is missing or NaN.
        UnsupportedError: pieces are longer than any that are known.
    """
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"the vocabulary has {len(vocabulary.tokens)} pieces and {len(scores)} scores"
        )
    if any(score != score for score in scores):
        raise CheckpointError("a piece of the vocabulary has the score NaN")
    merges = merges_from_scores(vocabulary, scores)
    return build_of_merges(vocabulary, merges, prefix=prefix, once=once)


def build_of_merges(
    vocabulary: Vocabulary,
    merges: Sequence[tuple[str, str]],
    *,
    prefix: bool,
    once: bool = False,
) -> dict[str, bytes]:
    """Write the tokenizer's files.

    Args:
        vocabulary: see ``build``.
        merges: pairs of pieces, those first that are joined first.
        prefix: see ``build``.
        once: see ``build``.
    """
    bytes_known = {f"<0x{value:02X}>" for value in range(256)} <= set(vocabulary.tokens)
    model = {
        "unk_token": vocabulary.text(vocabulary.unk),
        "fuse_unk": True,
        "byte_fallback": bytes_known,
        "merges": merge_list(merges),
    }
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend: list[Json] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    first = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    at_once = prefix and once
    files = companions(vocabulary)
    files["tokenizer.json"] = tokenizer_json(
        vocabulary,
        model,
        normalizer=None if at_once else {"type": "Sequence", "normalizers": [*prepend, spaces]},
        pre_tokenizer=first if at_once else None,
        post_processor=template(vocabulary),
        decoder=_decoder(prefix),
    )
    return files


def _decoder(prefix: bool) -> Json:
    steps: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def merges_from_scores(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Rank all ways of making a piece of two others, best first.

    Args:
        vocabulary: pieces; only ``NORMAL`` ones take part.
        scores: one a piece.

    Raises:
        UnsupportedError: the pieces are too long to try all splits.
    """
    normal = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, scores, strict=True)
        if kind == Kind.NORMAL
    }
    longest = max(map(len, normal), default=0)
    if longest > _MAX_PIECE_CHARS or sum(map(len, normal)) > _MAX_TOTAL_CHARS:
        raise UnsupportedError(
            f"the vocabulary has a piece of {longest} characters, {_MAX_PIECE_CHARS} are the most "
            f"supported, or more than {_MAX_TOTAL_CHARS} in all"
        )
    ranked = sorted(normal, key=lambda piece: -normal[piece])
    return [
        (piece[:at], piece[at:])
        for piece in ranked
        for at in _split_order(piece)
        if piece[:at] in normal and piece[at:] in normal
    ]


def _split_order(piece: str) -> Iterator[int]:
    """All split points of a piece, in the order in which they must be ranked.

    Splits of one piece compete only where they overlap: symbols A, B, C with A+B = B+C = piece.
    Sentencepiece then takes the left pair, so the split after len(A) must come before the one
    before len(C) = len(A). That is the case when the piece has the period len(A). Where both
    orders are asked for ("aaa"), the longer left part is first: a run of equal characters is joined
    from the left, which leaves the odd one at the right.
    """
    size = len(piece)
    for long in range(size - 1, (size - 1) // 2, -1):
        short = size - long
        if short == long:
            yield long
        elif _has_period(piece, short) and not _has_period(piece, long):
            yield from (short, long)
        else:
            yield from (long, short)


def _has_period(piece: str, period: int) -> bool:
    return piece.startswith(piece[period:])
