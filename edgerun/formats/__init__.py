"""Weight formats: how a matrix of weights becomes bytes. One file owns one layout."""

from edgerun.formats.base import PackedWeight, WeightFormat
from edgerun.formats.registry import dense, format_named, format_names

__all__ = ["PackedWeight", "WeightFormat", "dense", "format_named", "format_names"]
