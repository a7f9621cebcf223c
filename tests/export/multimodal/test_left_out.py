"""What is left out beside the text model is said, and what is not there is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun_export.architectures.decoder.multimodal import PICTURES, PICTURES_AND_SOUND
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT
from tests.export.multimodal.wrapped import (
    ALONE_INSIDE,
    BESIDE,
    CASES,
    Case,
    Tensors,
    exported_to,
    same_bytes,
    wrap,
)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("qwen3_5_text", "mtp.fc.weight", MTP_LEFT_OUT),
        ("apertus1p5_text", "model.vision_tokenizer.quant_conv.bias", PICTURES_AND_SOUND),
    ],
)
def test_a_text_model_alone_may_be_named_as_one_inside(
    name: str, more: str, said: str, exported: Any, tmp_path: Path
) -> None:
    """As transformers reads Qwen3.5 and Apertus 1.5; what is left out is said."""
    case = Case(name, name, name, (ALONE_INSIDE,))
    folder = wrap(
        tmp_path / "checkpoint",
        case,
        alter=lambda tensors: tensors.update({more: np.ones((4, 4), np.float32)}),
        config=lambda config: config["text_config"],
    )
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported(case.text, weights="fp32"))
    assert result.warnings == [said]


def test_layers_that_predict_more_tokens_are_left_out_and_said(
    exported: Any, tmp_path: Path
) -> None:
    def alter(tensors: Tensors) -> None:
        tensors["mtp.fc.weight"] = np.ones((4, 4), np.float32)

    folder = wrap(tmp_path / "checkpoint", CASES["exaone4_5"], alter=alter)
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported("exaone4", weights="fp32"))
    assert result.warnings == [PICTURES, MTP_LEFT_OUT]


def test_what_is_not_there_is_not_said_to_be_left_out(exported: Any, tmp_path: Path) -> None:
    def alter(tensors: Tensors) -> None:
        for name in BESIDE.others:
            del tensors[name]

    folder = wrap(tmp_path / "checkpoint", CASES["gemma3"], alter=alter)
    assert exported_to(folder, tmp_path / "bundle").warnings == []
