"""Finds the translators: the files beside this one, by the name of their op."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.discovery import entries

TRANSLATORS: Mapping[str, Translator] = entries("edgerun.backends.openvino.translate", "TRANSLATOR")
