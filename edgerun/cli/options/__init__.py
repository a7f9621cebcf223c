"""Options that several commands share, and what they mean to ``edgerun.load``.

What a command does where an option is left out stands at the end of its help, ``[default: ...]``;
the pages add it themselves for values that a parameter has.
"""

from edgerun.cli.options.declared import (
    ANY_MODEL,
    CHATTING,
    LOADING,
    MODEL_HELP,
    Attention,
    BackendName,
    Context,
    Device,
    Draft,
    ExpertMemory,
    ExpertTrace,
    GpuMemory,
    HideThinking,
    Json,
    KVCacheType,
    Latent,
    Model,
    NamedModel,
    Pack,
    Place,
    Prefill,
    Prompt,
    Raw,
    Require,
    Share,
    ShowStats,
    Suffix,
    System,
    TemplateValues,
    Think,
    Threads,
)
from edgerun.cli.options.loading import given, load, load_by, model_of, say_forecast
from edgerun.cli.options.spreading import (
    with_all_sampling,
    with_chatting,
    with_loading,
    with_loading_of,
    with_sampling,
)

__all__ = [
    "ANY_MODEL",
    "MODEL_HELP",
    "Model",
    "Prompt",
    "NamedModel",
    "System",
    "Raw",
    "Suffix",
    "Threads",
    "BackendName",
    "Device",
    "Place",
    "Require",
    "Context",
    "KVCacheType",
    "Latent",
    "Pack",
    "Prefill",
    "Attention",
    "ExpertMemory",
    "GpuMemory",
    "ExpertTrace",
    "Share",
    "Think",
    "TemplateValues",
    "Draft",
    "LOADING",
    "CHATTING",
    "Json",
    "HideThinking",
    "ShowStats",
    "examples",
    "given",
    "load",
    "load_by",
    "model_of",
    "say_forecast",
    "with_all_sampling",
    "with_chatting",
    "with_loading",
    "with_loading_of",
    "with_sampling",
]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in lines)
