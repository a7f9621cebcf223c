"""What residual streams are before a layer, each a sum of all of them."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import COUNT, F32, Example, Op, normal, rows


def altup_predict(streams: F32, coefs: F32, *, parts: int) -> F32:
    """Part j of a row is the sum of all ``parts`` i of ``streams``, times ``coefs[j, i]``.

    A row of ``coefs`` is ``[parts, parts]``, flattened; the identity is in them already.
    Source: Baykal et al. 2023 (AltUp), algorithm 1, "predict".
    """
    matrices = coefs.reshape(len(coefs), parts, parts)
    sums = np.matmul(matrices, streams.reshape(len(streams), parts, -1))
    return np.asarray(sums.reshape(streams.shape))


def _examples() -> list[Example]:
    examples = []
    for height, parts, width in [(1, 4, 7), (3, 2, 64), (2, 4, 40), (2, 1, 5)]:
        inputs = {
            "streams": normal((height, parts * width), 1),
            "coefs": normal((height, parts * parts), 2),
        }
        examples.append(Example(inputs, {"parts": parts}))
    return examples


OP = Op(
    inputs=(rows("streams", "width"), rows("coefs", "parts*parts")),
    outputs=(rows("out", "width"),),
    define=altup_predict,
    attributes={"parts": COUNT},
    divides=(("parts", "width"),),
    tolerance=1e-6,
    examples=_examples,
)
