"""What residual streams are behind a layer, which has seen the first of them alone."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import COUNT, F32, Example, Op, normal, rows, vector


def altup_correct(
    activated: F32, predictions: F32, coefs: F32, scale: F32 | None = None, *, parts: int
) -> tuple[F32, F32]:
    """Adds to part j of ``predictions`` what the layer changed of the first, times ``coefs[j]``.

    The layer made ``activated`` of part 0. A row of ``coefs`` is ``[parts]``; the one that is added
    to each is in them already. Source: Baykal et al. 2023 (AltUp), algorithm 1, "correct".

    Returns:
        the streams, and the first of them times ``scale``.
    """
    streams = predictions.reshape(len(predictions), parts, -1)
    change = activated - streams[:, 0]
    streams = streams + change[:, None] * coefs[:, :, None]
    first = streams[:, 0] if scale is None else streams[:, 0] * scale
    return streams.reshape(predictions.shape), np.ascontiguousarray(first)


def _examples() -> list[Example]:
    examples = []
    for height, parts, width in [(1, 4, 7), (3, 2, 64), (2, 4, 40), (2, 1, 5)]:
        inputs = {
            "activated": normal((height, width), 1),
            "predictions": normal((height, parts * width), 2),
            "coefs": normal((height, parts), 3),
        }
        examples.append(Example(inputs, {"parts": parts}))
        inputs = {**inputs, "scale": normal((width,), 4)}
        examples.append(Example(inputs, {"parts": parts}))
    return examples


OP = Op(
    inputs=(
        rows("activated", "width"),
        rows("predictions", "parts*width"),
        rows("coefs", "parts"),
        vector("scale", "width", optional=True),
    ),
    outputs=(rows("streams", "parts*width"), rows("first", "width")),
    define=altup_correct,
    attributes={"parts": COUNT},
    tolerance=1e-6,
    examples=_examples,
)
