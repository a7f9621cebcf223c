"""What a token takes at least if experts are known a few layers before they are needed, not sooner.

The smaller of what the disk and what memory can bring takes both to work all of the time. But
which experts a layer needs is known when its router has run; by guesses that are all right some
layers before; and of a token's first layers when the token begins. How many of them miss differs
from layer to layer, so that the disk rests where few do and is waited for where many do.

And while what comes after the last layer is computed, such as the product with all words, nobody
can know what the next token needs, for it is not chosen yet: the disk rests.

This is the time line of that, for the least of everything else: reads begin at once and follow one
another without pause, what was read costs nothing more, and all that a layer computes is done while
its last reads are under way. So no program is faster whose guesses go no farther.
"""

from __future__ import annotations

import numpy as np

TOKENS = 400  # drawn at random


def token_s(
    layers: int,
    top_k: int,
    missing: float,
    read_s: float,
    compute_s: float,
    reach: int,
    after_s: float = 0.0,
) -> float:
    """Seconds of a token, on average.

    Args:
        layers: of experts.
        top_k: experts that a token needs of each.
        missing: the share of these that has to be read; any of them alike.
        read_s: of an expert, with the disk as fast as it is with many.
        compute_s: of a token, with everything in memory; the same for each layer.
        reach: layers ahead that are known when a layer begins; 0 for its own experts alone.
        after_s: of ``compute_s``, after the last layer.
    """
    rng, total = np.random.default_rng(0), 0.0
    layer_s = (compute_s - after_s) / layers
    for misses in rng.binomial(top_k, missing, (TOKENS, layers)):
        ready: list[float] = []  # when each layer's experts have been read
        now = 0.0
        for layer in range(layers):
            for later in range(len(ready), min(layers, layer + reach + 1)):
                begin = max(now, ready[-1] if ready else 0.0)
                ready.append(begin + read_s * int(misses[later]))
            now = max(now + layer_s, ready[layer])
        total += now + after_s
    return total / TOKENS
