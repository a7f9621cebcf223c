"""The options themselves, but for those of sampling, which declare themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ANY_MODEL = "A bundle, a checkpoint (a folder or a GGUF file), or hf:OWNER/NAME."
MODEL_HELP = f"{ANY_MODEL} [default: the model that comes with edgerun]"
Model = Annotated[Path | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Prompt = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The same as TEXT; '-' is stdin alone. What comes through stdin is put behind it.",
    ),
]
NamedModel = Annotated[
    Path | None,
    typer.Option("-m", "--model", metavar="MODEL", help="The same as MODEL."),
]
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System message for a model with a chat format."),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Take the prompt as it is, without the chat format.")
]
Suffix = Annotated[
    str | None,
    typer.Option(
        "--suffix",
        metavar="TEXT",
        help="Fill the gap between the prompt, without the chat format, and this text: for models "
        "of code that are made for that.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t", "--threads", metavar="N", help="Worker threads. [default: one per fast core]"
    ),
]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Use this back-end, e.g. cpu or reference."),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Device of the back-end, where it has several, e.g. cosim; "
        "or both, e.g. openvino:NPU.",
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--place",
        metavar="PLACES",
        help="Where parts of the work go, e.g. prefill=openvino:NPU,decode=cpu.",
    ),
]
Require = Annotated[
    str | None,
    typer.Option(
        "--require",
        metavar="NAME",
        help="End with an error if this back-end fails, e.g. openvino:NPU, instead of going on "
        "with the CPU.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--context",
        metavar="N",
        help="Tokens that a text may have, prompt and reply together.",
    ),
]
KVCacheType = Annotated[
    str | None,
    typer.Option(
        "--kv-cache",
        metavar="TYPE",
        help="Storage of keys and values: fp32, fp16 or int8; int4 on `reference`. [default: fp16]",
    ),
]
Latent = Annotated[
    str | None,
    typer.Option(
        "--latent",
        metavar="WHEN",
        help="When models like DeepSeek's, whose keys and values are made of one narrow row a "
        "token, keep that row: auto, on the processor with fp16 or fp32, or never. [default: auto]",
    ),
]
Pack = Annotated[
    str | None,
    typer.Option(
        "--pack",
        metavar="TYPE",
        help="Ternary weights in memory: two_bits, or trits (1.6 bits), smaller and slower. "
        "[default: what the bundle asks for]",
    ),
]
Prefill = Annotated[
    str | None,
    typer.Option(
        "--prefill",
        metavar="TYPE",
        help="Prompts: exact, with the bits of replies, or fast, by weights that are rounded again "
        "and take more memory. [default: exact]",
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="TYPE",
        help="Prompts attend: exact, with the bits of replies, or fast, in bfloat16 on processors "
        "with AMX or AVX512_BF16. [default: exact]",
    ),
]
ExpertMemory = Annotated[
    str | None,
    typer.Option(
        "--expert-memory",
        metavar="SIZE",
        help="Memory for experts, e.g. 4G, or 25% of what all take; others are read from the disk "
        "as they are needed. [default: as much as is free, where they do not fit]",
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory",
        metavar="SIZE",
        help="Memory of the GPU for experts, e.g. 6G, with --device cuda:0. [default: what is free "
        "there, less a margin]",
    ),
]
ExpertTrace = Annotated[
    Path | None,
    typer.Option(
        "--expert-trace",
        metavar="FILE",
        help="What `edgerun trace` wrote: a device that shares layers of experts begins with those "
        "that it names most often.",
    ),
]
Share = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="WHEN",
        help="When the device that was named gets a part of layers of experts: auto, where that is "
        "faster than the processor alone, or always. [default: auto]",
    ),
]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        help="Whether replies begin with thinking, for models whose chat format has a switch for "
        "it. [default: what the format does by itself]",
    ),
]
TemplateValues = Annotated[
    list[str] | None,
    typer.Option(
        "--template-value",
        metavar="NAME=VALUE",
        help="What else the chat format is told, e.g. reasoning_effort=high; may be repeated.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="NAME",
        help="What guesses how replies go on, so that several tokens are computed at a time where "
        "that is faster; the text stays the same: lookup, by what was said before; auto, the same "
        "where the text can stay the same; or none. [default: auto]",
    ),
]
LOADING: dict[str, Any] = {
    "threads": Threads,
    "backend": BackendName,
    "device": Device,
    "place": Place,
    "require": Require,
    "context": Context,
    "kv_cache": KVCacheType,
    "latent": Latent,
    "pack": Pack,
    "prefill": Prefill,
    "attention": Attention,
    "expert_memory": ExpertMemory,
    "gpu_memory": GpuMemory,
    "expert_trace": ExpertTrace,
    "share": Share,
}
CHATTING: dict[str, Any] = {"draft": Draft, "think": Think, "template_values": TemplateValues}
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
HideThinking = Annotated[
    bool,
    typer.Option("--hide-thinking", help="Show how long the model thinks instead of what."),
]
ShowStats = Annotated[bool, typer.Option("--stats", help="Show speed and memory on stderr.")]
