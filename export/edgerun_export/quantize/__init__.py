"""Quantisation methods: one file each, from float rows (or exact ternary values) to codes."""

from edgerun_export.quantize.registry import block_layout, quantise_rows
from edgerun_export.quantize.ternary import encode_values

__all__ = ["block_layout", "encode_values", "quantise_rows"]
