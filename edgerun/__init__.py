"""edgerun runs language models from one ONNX bundle on whatever the device has.

Example:
    >>> import edgerun
    >>> llm = edgerun.load()  # the small model that comes with the package
    >>> print(llm.generate("Tell me a story about a dog."))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgerun._version import __version__

if TYPE_CHECKING:
    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.engine.chooser.logprobs import TokenLogprob
    from edgerun.engine.chooser.params import SamplingParams
    from edgerun.engine.stats import Stats
    from edgerun.errors import (
        BackendError,
        BundleError,
        ChooserError,
        EdgerunError,
        InputError,
        MissingDependencyError,
        PromptError,
        SamplingError,
        SessionError,
        StorageError,
        UnsupportedError,
    )
    from edgerun.llm.chat_session import ChatSession
    from edgerun.llm.llm import LLM, load
    from edgerun.llm.options import LoadKeywords, LoadOptions
    from edgerun.llm.replies.completion import Completion
    from edgerun.llm.replies.stream import TextStream
    from edgerun.model.chat.template import Message
    from edgerun.model.chat.tools.call import ToolCall

__all__ = [
    "LLM",
    "BackendError",
    "BundleError",
    "ChatSession",
    "ChooserError",
    "Completion",
    "EdgerunError",
    "InputError",
    "LoadKeywords",
    "LoadOptions",
    "Message",
    "MissingDependencyError",
    "PromptError",
    "SamplingError",
    "SamplingKeywords",
    "SamplingParams",
    "SessionError",
    "Stats",
    "StorageError",
    "TextStream",
    "TokenLogprob",
    "ToolCall",
    "UnsupportedError",
    "__version__",
    "load",
]

if not TYPE_CHECKING:  # a type checker is to see the names above and no others
    _MODULES = {
        "ChatSession": "edgerun.llm.chat_session",
        "Completion": "edgerun.llm.replies.completion",
        "TextStream": "edgerun.llm.replies.stream",
        "SamplingKeywords": "edgerun.engine.chooser.keywords",
        "SamplingParams": "edgerun.engine.chooser.params",
        "TokenLogprob": "edgerun.engine.chooser.logprobs",
        "Stats": "edgerun.engine.stats",
        "LLM": "edgerun.llm.llm",
        "load": "edgerun.llm.llm",
        "LoadKeywords": "edgerun.llm.options",
        "LoadOptions": "edgerun.llm.options",
        "Message": "edgerun.model.chat.template",
        "ToolCall": "edgerun.model.chat.tools.call",
    }

    def __getattr__(name):
        """Imports what is named on first use, so that `import edgerun` and `--help` stay fast."""
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module 'edgerun' has no attribute '{name}'")
        return getattr(import_module(_MODULES.get(name, "edgerun.errors")), name)

    def __dir__():
        return sorted(__all__)
