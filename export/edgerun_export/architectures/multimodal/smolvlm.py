"""SmolVLM 2, which is stored as Idefics 3 is."""

from __future__ import annotations

from edgerun_export.architectures.multimodal import idefics3

ARCHITECTURE = idefics3.ARCHITECTURE
