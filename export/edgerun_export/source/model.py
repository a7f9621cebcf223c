"""Makes sense of a checkpoint: its decoder, its weights, and what a user should know about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.source.weights import SourceWeights

_COMPARED_WEIGHTS = 1 << 20


def interpret(checkpoint: Checkpoint) -> tuple[SourceWeights, list[str]]:
    """Finds out what decoder a checkpoint holds, and checks that it holds that and nothing else.

    Returns:
        its weights, and sentences about what had to be assumed.

    Raises:
        CheckpointError: the configuration is inconsistent, or a tensor is missing, has another
            shape, or would be left out.
        UnsupportedError: there is no implementation for such a model.
    """
    stored = checkpoint.tensors()
    spec = describe(checkpoint.config, stored)
    aliases: dict[str, str] = {}
    left_out = [
        sentence
        for begin, sentence in spec.storage.said_of_unused.items()
        if any(name.startswith(begin) for name in stored)
    ]
    warnings = [*spec.notes, *left_out, *checkpoint.notes]
    storage, embedding = spec.storage, spec.embedding_weight
    embedding, head = storage.placed(storage.names.get(embedding, embedding)), storage.head
    if spec.tied and head in stored:
        if embedding not in stored:
            aliases[spec.embedding_weight] = HEAD_WEIGHT
        elif not _same(checkpoint, embedding, head):
            spec = describe(_untied(checkpoint.config), stored)
            warnings.append(
                "config.json says that head and embedding are tied, but the checkpoint holds a "
                f"'{head}' with other weights; the head is made of those, as transformers "
                "does"
            )
    weights = SourceWeights(checkpoint, spec, aliases)
    weights.check()
    assumptions = [*_assumed_ternary(checkpoint, weights), *_assumed_packing(checkpoint)]
    return weights, warnings + assumptions


def _untied(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration, but for the head: factors of a family depend on that, too."""
    untied = {"tie_word_embeddings": False, "tie_embedding": False}
    text = config.get("text_config")
    nested = {"text_config": {**text, **untied}} if isinstance(text, Mapping) else {}
    return {**config, **untied, **nested}


def _same(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Compares two tensors bit by bit, a few rows at a time."""
    shape = checkpoint.tensors()[first].shape
    if checkpoint.tensors()[second].shape != shape:
        return False
    step = max(1, _COMPARED_WEIGHTS // shape[-1])
    parts = (slice(at, at + step) for at in range(0, shape[0], step))
    return all(
        np.array_equal(checkpoint.read(first, rows), checkpoint.read(second, rows))
        for rows in parts
    )


def _assumed_ternary(checkpoint: Checkpoint, weights: SourceWeights) -> list[str]:
    """Says so where float weights become ternary without the configuration asking for it."""
    spec: DecoderSpec = weights.spec
    if spec.ternary != "master" or checkpoint.config.get("quantization_config"):
        return []
    if weights.stores_ternary():
        return []
    return [
        f"the configuration of this {spec.architecture} has no quantization_config, so its weights "
        "are taken for those that a b1.58 model was trained with and are rounded to -1, 0 and 1 "
        "by its rule; a model that was not trained that way will write poor text"
    ]


def _assumed_packing(checkpoint: Checkpoint) -> list[str]:
    """Says so where weights are in an order that the file does not tell."""
    count = sum(info.dtype == "I2_S" for info in checkpoint.tensors().values())
    if not count:
        return []
    return [
        f"{count} tensors are I2_S, which bitnet.cpp packs in an order of its own on some "
        "machines. A file does not tell; this one is read as x86 and the Python converters pack, "
        "and if it was quantised on ARM with a build since November 2025 the model will write "
        "nonsense"
    ]
