"""Where the kernels of a choice find the numbers that they go by, and what they say."""

from __future__ import annotations

# Of ``numbers``, float64.
TEMPERATURE = 0  # 0 leaves logits as they are
REPETITION = 1
PRESENCE = 2
FREQUENCY = 3
LEAST = 4  # how far below the largest a key may be; above 0 for any distance
TOP_P = 5  # 1 keeps all
UNIFORM = 6  # in [0, 1)
HIGHEST = 7  # the largest key; written by ``candidates``
NUMBERS = 8

# Of ``result``, int64.
COUNT = 0  # how many candidates there are
TOKEN = 1  # which was chosen
RESULTS = 2
REFUSED = -1  # of both: a logit is NaN, or the largest is infinite

BLOCK = 512  # candidates whose weights are summed before it is known in which one to look
