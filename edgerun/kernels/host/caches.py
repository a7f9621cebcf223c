"""How large the processor's caches are, as the system says."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


def first_cache_bytes() -> int:
    """Size of a core's first cache of data; 0 where the system does not say."""
    return _bytes("SC_LEVEL1_DCACHE_SIZE", "index0")


def last_cache_bytes() -> int:
    """Size of the processor's last cache; 0 where the system does not say."""
    return _bytes("SC_LEVEL3_CACHE_SIZE", "index3")


def _bytes(name: str, folder: str) -> int:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        if (nbytes := os.sysconf(name)) > 0:
            return nbytes
    with contextlib.suppress(ValueError, OSError):  # in some virtual machines only this does
        return int((FOLDER / folder / "size").read_text().strip().removesuffix("K")) << 10
    return 0
