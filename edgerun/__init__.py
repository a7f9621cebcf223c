"""edgerun runs language models from one ONNX bundle on whatever the device has.

Example:
    >>> import edgerun
    >>> llm = edgerun.load()  # the small model that comes with the package
    >>> print(llm.generate("Tell me a story about a dog."))  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgerun._version import __version__

__all__ = ["LLM", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Imports the runtime on first use, so that `import edgerun` and `--help` stay fast."""
    if name in ("LLM", "load"):
        return getattr(import_module("edgerun.llm"), name)
    raise AttributeError(f"module 'edgerun' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
