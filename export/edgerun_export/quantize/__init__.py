"""Quantisation methods: one file each, from float rows (or integers and scales) to codes."""

from edgerun_export.quantize.exact import encode_affine, encode_integers, fits
from edgerun_export.quantize.registry import block_layout, method_for, quantise_rows, usual_method

__all__ = [
    "block_layout",
    "encode_affine",
    "encode_integers",
    "fits",
    "method_for",
    "quantise_rows",
    "usual_method",
]
