"""Memory for pages of keys and values in the order of tiles (``kernels/attention/tiles.py``)."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.attention.units import turned_bytes
from edgerun.kernels.host.huge_pages import zeroed_memory

MOST_BYTES = 32 << 20  # committed on first use; pages beyond are turned by every unit
MOST_PAGES = 2048

logger = logging.getLogger(__name__)


class PageTiles:
    """What the layers of a team's programs share, which run one at a time."""

    def __init__(self) -> None:
        """Takes nothing yet."""
        self._memory: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._is_refused = False

    def for_heads(self, kv_heads: int, head_dim: int) -> NDArray[np.uint8] | None:
        """Room for pages of so many heads: uint8 ``[pages, kv_heads, bytes]``.

        None, with a warning once, without memory; then every unit turns pages by itself.
        """
        if not len(self._memory) and not self._is_refused:
            self._take()
        if self._is_refused:
            return None
        each = turned_bytes(head_dim)
        pages = min(MOST_PAGES, MOST_BYTES // (kv_heads * each))
        return self._memory[: pages * kv_heads * each].reshape(pages, kv_heads, each)

    def _take(self) -> None:
        try:
            self._memory = zeroed_memory(MOST_BYTES)
        except (MemoryError, OSError):
            self._is_refused = True
            logger.warning(
                "no memory for %.1f MB of keys and values in the order of tiles: attention "
                "to prompts takes longer, with the same results",
                MOST_BYTES / 1e6,
            )
