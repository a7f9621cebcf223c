"""What flows from layer to layer of a decoder in NumPy, as columns of one array.

The residual stream comes first. Behind it lies what later layers read of it: the inputs of all
layers, keys and values that more than one layer attends to, and all residual streams where there
are several; then the one in front is what a layer has made of the first so far. So whoever takes
texts through layers one by one, as calibration does, needs to know of none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgerun_export.architectures import DecoderSpec


@dataclass(frozen=True, slots=True)
class Stream:
    """Where something lies in a row.

    Attributes:
        residual: the residual stream.
        inputs: inputs of layers, one after the other.
        keys: by the layer that makes them, its keys and then its values.
        streams: all residual streams, one after the other; empty where there is one alone.
        before: the residual stream that a layer began with, where feed-forward parts read that;
            else empty.
        width: elements of a row in all.
    """

    residual: slice
    inputs: slice
    keys: Mapping[int, slice]
    streams: slice
    before: slice
    width: int


def stream_of(spec: DecoderSpec) -> Stream:
    """The columns of a decoder's stream."""
    hidden = end = spec.hidden_size
    if spec.per_layer is not None:
        end += spec.num_layers * spec.per_layer.width
    inputs, keys = slice(hidden, end), {}
    for source in sorted({each.kv_source for each in spec.layers if each.kv_source is not None}):
        size = 2 * spec.num_kv_heads_of(source) * spec.head_dim_of(source)
        keys[source] = slice(end, end + size)
        end += size
    streams = slice(end, end + (spec.altup.count * hidden if spec.altup else 0))
    before = slice(streams.stop, streams.stop + hidden * spec.parallel)
    return Stream(slice(hidden), inputs, keys, streams, before, before.stop)
