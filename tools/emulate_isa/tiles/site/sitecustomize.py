"""Makes LLVM take this processor, in every Python process, for one of Intel's that has AMX.

``../tiles.c`` does what it lacks. The name matters: for AMD's processors LLVM renames registers
late, tile registers as well, whatever shapes they are set up for.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding

_ask = binding.get_host_cpu_features


def _features() -> Any:
    features = _ask()
    features.update({"amx-tile": True, "amx-int8": True, "amx-bf16": True})
    return features


binding.get_host_cpu_features = _features
binding.get_host_cpu_name = lambda: "sapphirerapids"
