"""llama2.c's ``tokenizer.bin`` (https://github.com/karpathy/llama2.c, ``tokenizer.py``, ``run.c``).

An int32 (length of the longest piece), then for each piece a float32 score, an int32 length and
the bytes. It is a sentencepiece vocabulary with spaces in place of U+2581; ``encode`` in ``run.c``
joins the best-scored neighbours, leftmost first, as sentencepiece does. Its ids 0, 1 and 2 are
``<unk>``, ``<s>`` and ``</s>``, and byte ``b`` is piece ``b + 3``.

The one difference: ``run.c`` spells a U+2581 that stands in the text itself with three bytes, where
sentencepiece (and this conversion) reads it as a space.
"""

from __future__ import annotations

import struct

from edgerun.errors import CheckpointError
from edgerun_export.tokenizers import spm
from edgerun_export.tokenizers.vocabulary import Kind, Vocabulary

_SPECIAL = {0: ("<unk>", Kind.UNKNOWN), 1: ("<s>", Kind.CONTROL), 2: ("</s>", Kind.CONTROL)}
_BYTES = {3 + value: f"<0x{value:02X}>" for value in range(256)}


def from_llama2c(data: bytes, vocab_size: int) -> dict[str, bytes]:
    """Convert a ``tokenizer.bin``.

    Args:
        data: the file's contents.
        vocab_size: number of pieces the model has; the file does not say.

    Returns:
        File contents by name; see ``Checkpoint.tokenizer_files``.

    Raises:
        CheckpointError: the file is truncated, damaged, or of another vocabulary.
    """
    pieces = _parse(data)
    if len(pieces) != vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(pieces)} pieces and the model {vocab_size}; they do not "
            "belong together"
        )
    tokens, kinds = [], []
    for index, (_, text) in enumerate(pieces):
        token, kind = _SPECIAL.get(index, (text, Kind.NORMAL))
        if _BYTES.get(index) == text:
            kind = Kind.BYTE
        tokens.append(token.replace(" ", spm.SPACE))
        kinds.append(kind)
    vocabulary = Vocabulary(tokens, kinds, bos=1, eos=2, unk=0, add_bos=True, stop=())
    return spm.build(vocabulary, [score for score, _ in pieces], prefix=True)


def _parse(data: bytes) -> list[tuple[float, str]]:
    """Split the file into (score, text)."""
    pieces: list[tuple[float, str]] = []
    at = 4
    while at < len(data):
        if at + 8 > len(data):
            raise CheckpointError(f"the tokenizer is truncated after piece {len(pieces)}")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 0 <= length <= len(data) - at:
            raise CheckpointError(
                f"piece {len(pieces)} of the tokenizer has length {length}, and {len(data) - at} "
                "bytes are left; the file is truncated or not a llama2.c tokenizer"
            )
        try:
            pieces.append((score, data[at : at + length].decode("utf-8")))
        except UnicodeDecodeError as error:
            raise CheckpointError(f"piece {len(pieces)} of the tokenizer is not UTF-8") from error
        at += length
    return pieces
