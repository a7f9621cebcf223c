"""How tensors are named (transformers 5.24, ``conversion_mapping.py``, ``Qwen2VL...``).

Qwen2-VL and Qwen2.5-VL are released as ``AS_RELEASED`` (mergekit, ``qwen2_5_vl.json``), Qwen3-VL as
``INSIDE`` (``qwen3_vl.json``).
"""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Layout

AS_RELEASED = Layout("model.", ("visual.",))
INSIDE = Layout("model.language_model.", ("model.visual.",))
