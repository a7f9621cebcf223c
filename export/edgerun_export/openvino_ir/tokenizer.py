"""A ``tokenizer.json`` as two graphs, text to ids and ids to text.

openvino-tokenizers has such a conversion, but from the objects of transformers, which an exporter
should not need. Here its building blocks are put together from the file itself, in the order in
which the tokenizers library works. One difference remains: a word that is a token is always taken
as it is, as if ``ignore_merges`` were set, which matters where merges cannot make that token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openvino
from openvino_tokenizers import tokenizer_pipeline as steps
from openvino_tokenizers.constants import UTF8ReplaceMode
from openvino_tokenizers.utils import change_inputs_type, change_outputs_type

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.graph.external_data import DataWriter
from edgerun_export.openvino_ir.ir import Constants, write_ir

Json = Mapping[str, Any]
_Rows = Mapping[str, Callable[[Json], list[Any]]]


def write_tokenizer(folder: Path, tokenizer: Json, pad_id: int) -> None:
    """Writes ``openvino_tokenizer`` and ``openvino_detokenizer``, each ``.xml`` and ``.bin``.

    Args:
        folder: where to.
        tokenizer: content of tokenizer.json.
        pad_id: what fills up the left of shorter texts of a batch.

    Raises:
        UnsupportedError: the tokenizer has a part that openvino-tokenizers cannot compute.
        CheckpointError: it is not complete.
        OSError: a file cannot be written.
    """
    try:
        pipeline = _pipeline(tokenizer, pad_id)
        encoder = change_outputs_type(pipeline.get_tokenizer_ov_subgraph(), openvino.Type.i64)
        decoder = change_inputs_type(pipeline.get_detokenizer_ov_subgraph(), openvino.Type.i64)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"tokenizer.json is not complete: {error!r}") from error
    except RuntimeError as error:
        raise _unsupported(f"a part ({str(error).strip().splitlines()[-1]})") from error
    encoder.set_rt_info(pad_id, "pad_token_id")  # which openvino-genai asks for by name
    for model, name in ((encoder, "openvino_tokenizer"), (decoder, "openvino_detokenizer")):
        with DataWriter(folder / f"{name}.bin") as data:
            write_ir(model, folder / f"{name}.xml", Constants(data))


def _pipeline(tokenizer: Json, pad_id: int) -> Any:
    pipeline = steps.TokenizerPipeline()
    added = tokenizer.get("added_tokens") or []
    pipeline.add_steps(_before_all(tokenizer))
    pipeline.add_steps(
        steps.SpecialTokensSplit(
            [steps.SpecialToken(t["content"], t["lstrip"], t["rstrip"]) for t in added]
        )
    )
    for key, rows in (("normalizer", _NORMALIZERS), ("pre_tokenizer", _PRE_TOKENIZERS)):
        pipeline.add_steps(_steps(tokenizer, key, rows))
    pipeline.add_steps(_model(tokenizer))
    pipeline.vocab = pipeline[-1].vocab
    pipeline.add_steps(steps.CombineSegmentsStep(_template(tokenizer)))
    pipeline.add_steps(steps.PaddingStep(_token_id=pad_id, pad_right=False))
    pipeline.add_steps(
        steps.VocabDecoderStep.from_hf_json(
            {"model": {"type": "BPE", **tokenizer["model"]}},
            pipeline_vocab=pipeline.vocab,
            skip_tokens=[token["id"] for token in added if token["special"]],
            added_tokens={token["id"]: token["content"] for token in added},
            is_byte_level=pipeline.is_byte_level,
        )
    )
    pipeline.add_steps(_steps(tokenizer, "decoder", _DECODERS) or [steps.FuseStep()])
    pipeline.add_steps(steps.UTF8ValidateStep(UTF8ReplaceMode.REPLACE))
    return pipeline


def _before_all(tokenizer: Json) -> list[Any]:
    """The space that some tokenizers put before a text, unless it begins with a special token."""
    return [
        steps.RegexNormalizationStep.prepend_with_check_regex(part["replacement"], " ")
        for part in _parts(tokenizer.get("pre_tokenizer"))
        if part["type"] == "Metaspace" and part.get("prepend_scheme") == "first"
    ]


def _steps(tokenizer: Json, key: str, rows: _Rows) -> list[Any]:
    steps_of_parts = []
    for part in _parts(tokenizer.get(key)):
        if part["type"] not in rows:
            raise _unsupported(f"the {key} {part['type']}")
        steps_of_parts += rows[part["type"]](part)
    return steps_of_parts


def _parts(value: Json | None) -> Iterator[Json]:
    """The parts of a sequence, one after another; sequences may be nested."""
    if value is None:
        return
    if value["type"] != "Sequence":
        yield value
        return
    (parts,) = (item for key, item in value.items() if key != "type")
    for part in parts:
        yield from _parts(part)


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"openvino-tokenizers cannot compute {what} of this model's tokenizer.json; use --profile "
        "portable"
    )


def _pattern(part: Json) -> str:
    """The regular expression of a part; a plain text is one in which nothing is special."""
    (kind, text), *_ = part["pattern"].items()
    return str(text if kind == "Regex" else steps.quote_meta(text))


def _split(pattern: str, behaviour: str, invert: bool = False) -> Any:
    # Not mergeable: openvino-tokenizers joins expressions into one, while they are meant to be
    # applied one after another.
    return steps.RegexSplitStep(pattern, invert, behaviour, mergeable=False)


def _behaviour(part: Json) -> str:
    return str(part["behavior"]).lower().removesuffix("d")


def _byte_level(part: Json) -> list[Any]:
    sequence: list[Any] = []
    if part.get("add_prefix_space"):
        sequence.append(steps.RegexNormalizationStep("^([^ ])", " $1"))
    if part.get("use_regex", True):
        sequence.append(_split(steps.RegexSplitStep.byte_level_splitter().split_pattern, "isolate"))
    return [*sequence, steps.BytesToCharsStep()]


def _metaspace(part: Json) -> list[Any]:
    mark = part["replacement"]
    sequence = [steps.RegexNormalizationStep.replace_spaces_metaspace(mark)]
    if part.get("prepend_scheme", "always") == "always":
        sequence.append(steps.RegexNormalizationStep.prepend_with_check_regex(mark, mark))
    if part.get("split", True):
        sequence.append(_split(f"{mark}[^{mark}]*", "isolate"))
    return sequence


def _metaspace_decoder(part: Json) -> list[Any]:
    space = [steps.RegexDecodingStep(part["replacement"], " "), steps.FuseStep()]
    if part.get("prepend_scheme", "always") == "never":
        return space
    return [*space, steps.RegexDecodingStep.strip_forward_space()]


_NORMALIZERS: _Rows = {
    **{
        form: lambda part: [steps.NormalizeUnicode(part["type"])]
        for form in ("NFC", "NFD", "NFKC", "NFKD")
    },
    "Lowercase": lambda part: [steps.CaseFoldStep()],
    "Prepend": lambda part: [steps.RegexNormalizationStep.prepend_regex(part["prepend"])],
    "Replace": lambda part: [steps.RegexNormalizationStep(_pattern(part), part["content"])],
    "Strip": lambda part: [
        steps.RegexNormalizationStep.strip_regex(part["strip_left"], part["strip_right"])
    ],
}

_PRE_TOKENIZERS: _Rows = {
    "ByteLevel": _byte_level,
    "Split": lambda part: [_split(_pattern(part), _behaviour(part), part["invert"])],
    "Digits": lambda part: [
        _split(r"\p{N}", "isolate" if part["individual_digits"] else "contiguous")
    ],
    "Metaspace": _metaspace,
    "Punctuation": lambda part: [_split(r"\p{P}", _behaviour(part))],
}

_DECODERS: _Rows = {
    "ByteLevel": lambda part: [steps.CharsToBytesStep()],
    "ByteFallback": lambda part: [steps.ByteFallbackStep()],
    "Metaspace": _metaspace_decoder,
    "Fuse": lambda part: [steps.FuseStep()],
    "Replace": lambda part: [steps.RegexDecodingStep(_pattern(part), part["content"])],
    "Strip": lambda part: [
        steps.RegexDecodingStep(f"^{steps.quote_meta(part['content'])}{{0,{part['start']}}}", "")
    ],
}


def _model(tokenizer: Json) -> Any:
    model = tokenizer["model"]
    # Files without a type are those of early versions, which knew BPE alone.
    if model.get("type", "BPE") != "BPE":
        raise _unsupported(f"the model {model['type']}")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise _unsupported(f"the {key}")
    vocabulary = steps.TokenizationModelStep.get_vocab_as_list(model["vocab"])
    return steps.BPETokenizationStep(
        vocabulary,
        [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]],
        unk_token=model.get("unk_token") or "",
        fuse_unk=bool(model.get("fuse_unk")),
        byte_fallback=bool(model.get("byte_fallback")),
        added_tokens={t["content"]: t["id"] for t in tokenizer.get("added_tokens") or []},
    )


def _template(tokenizer: Json) -> list[Any]:
    """What is put around a text: ids of special tokens, and the text itself."""
    template: Json = {"single": [{"Sequence": {"id": "A"}}]}
    for part in _parts(tokenizer.get("post_processor")):
        if part["type"] == "TemplateProcessing":
            template = part
        elif part["type"] != "ByteLevel":  # which only moves offsets
            raise _unsupported(f"the post_processor {part['type']}")
    pieces: list[Any] = []
    for piece in template["single"]:
        ((kind, value),) = piece.items()
        if kind == "Sequence":
            pieces.append(steps.Sequence())
        else:
            ids = template["special_tokens"][value["id"]]["ids"]
            pieces += [steps.AddToken(token=value["id"], _token_id=token) for token in ids]
    return pieces
