"""Finds a codec by name."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from edgerun.errors import InputError
from edgerun.state import codecs
from edgerun.state.codecs.base import Codec

_OTHERS = frozenset({"base", "registry"})


@cache
def codec_names() -> tuple[str, ...]:
    """Names of all codecs: the files of this folder."""
    files = {module.name for module in pkgutil.iter_modules(codecs.__path__)}
    return tuple(sorted(files - _OTHERS))


@cache
def codec_named(name: str) -> Codec:
    """Returns the codec called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in codec_names():
        raise InputError(f"unknown cache codec '{name}': there are {', '.join(codec_names())}")
    codec: Codec = import_module(f"{codecs.__name__}.{name}").CODEC
    return codec
