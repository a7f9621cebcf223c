"""Quantisation methods: one file each, from float rows (or integers and scales) to codes."""

from edgerun_export.quantize.exact import encode_integers, fits
from edgerun_export.quantize.registry import block_layout, quantise_rows

__all__ = ["block_layout", "encode_integers", "fits", "quantise_rows"]
