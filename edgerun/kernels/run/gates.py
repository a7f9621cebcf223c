"""Words of what native code knows of the router of each layer of experts (``foresee.py``).

A guess says what a later layer will need by the input of the layer of some post.
"""

from __future__ import annotations

# CODES is the address of int8 ``[EXPERTS, TILES * TILE]``, 0 where native code knows no router, and
# SCALES that of float32 ``[EXPERTS]``, which codes are multiplied with. BIAS is that of float32
# ``[EXPERTS]`` and NORM that of float32 ``[WIDTH]``, or 0. A token goes to TOP_K experts. INPUT,
# POST and TABLE are addresses of the layer's words.
CODES, SCALES, TILES, BIAS, NORM, EXPERTS, TOP_K, WIDTH, INPUT, POST, TABLE = range(11)
GATE_WORDS = 11
GATE_BYTES = 8 * GATE_WORDS
TILE = 64  # columns that are multiplied at once

# The number of the post that a guess was made from, and the experts, the likeliest first.
NUMBER, GUESSED = range(2)
