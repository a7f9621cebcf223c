"""How keys and values are stored: one codec a file, found by the name of the file."""

from edgerun.state.codecs.registry import codec_named

__all__ = ["codec_named"]
