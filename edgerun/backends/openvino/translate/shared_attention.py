"""Attention to the keys and values of an earlier layer."""

from __future__ import annotations

from edgerun.backends.openvino.translate.attention import translate_shared
from edgerun.backends.openvino.translate.translator import Translator

TRANSLATOR = Translator(translate_shared)
