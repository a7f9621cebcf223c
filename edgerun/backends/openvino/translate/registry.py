"""Finds the translators: the files beside this one, and those of the folder of pointwise ops."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.discovery import entries

FOLDER = "edgerun.backends.openvino.translate"
TRANSLATORS: Mapping[str, Translator] = entries(FOLDER, "TRANSLATOR") | entries(
    f"{FOLDER}.pointwise", "TRANSLATOR"
)
