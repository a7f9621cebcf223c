"""``edgerun trace``: which experts the tokens of a text go to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.run import start

if TYPE_CHECKING:
    from edgerun.llm.replies.completion import Completion
    from edgerun.offload.trace_file import Trace

EXAMPLES = options.examples(
    'edgerun trace ./my-model "Once upon a time" -o story.trace',
    'edgerun trace ./my-model "Tell me a story." -n 256 --seed 1 -o reply.trace',
    "edgerun trace ./my-model --raw -o book.trace < book.txt",
)


_MODEL_HELP = "A mixture of experts: a bundle, a checkpoint, or hf:OWNER/NAME."


@options.with_loading_of("threads", "context", "kv_cache", "pack", "expert_memory")
@options.with_sampling
def trace(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP)] = None,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to trace.")] = None,
    named: options.NamedModel = None,
    prompt: options.Prompt = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    max_tokens: Annotated[
        int,
        typer.Option(
            "-n", "--max-tokens", metavar="N", min=0, help="Tokens of a reply to trace as well."
        ),
    ] = 0,
    sampling: dict[str, Any],
    system: options.System = None,
    raw: options.Raw = False,
    loading: dict[str, Any],
    as_json: options.Json = False,
) -> None:
    """The prompt and the reply are those of `edgerun run`, computed by the processor."""
    from edgerun.cli.prompt import gather, model_and_text
    from edgerun.files.output import check_output
    from edgerun.llm.tracing import load_traced
    from edgerun.offload.trace_file import write_trace

    check_output(output, replace=force)
    words = [word for word in (model, text) if word is not None]
    folder, texts = model_and_text(words, named, prompt)
    whole_prompt = gather(texts)
    sampling["max_tokens"] = max(1, max_tokens)  # the prompt alone is computed for the first
    with options.load_by(load_traced, folder, **loading) as llm:
        completion = start(llm, whole_prompt, system, "--raw" if raw else "", sampling).result()
        routes = llm.trace(completion.prompt_tokens)
    nbytes = write_trace(output, routes)
    if as_json:
        figures = summary(routes, completion if max_tokens else None)
        print(json.dumps({"file": str(output), "bytes": nbytes, **figures}, ensure_ascii=False))
    else:
        print(_as_text(output, routes, nbytes))


def summary(trace: Trace, reply: Completion | None) -> dict[str, Any]:
    """What ``--json`` prints besides the file; the names are a contract."""
    return {
        "model": trace.model,
        "tokens": trace.tokens,
        "prompt_tokens": trace.prompt_tokens,
        "layers": list(trace.layers),
        "experts": trace.experts,
        "top_k": trace.top_k,
        "text": reply.text if reply else "",
        "ids": reply.ids if reply else [],
    }


def _as_text(output: Path, trace: Trace, nbytes: int) -> str:
    return (
        f"{output}: {trace.tokens} tokens, {trace.prompt_tokens} of them of the prompt; "
        f"{len(trace.layers)} layers, up to {trace.top_k} of {trace.experts} experts each; "
        f"{nbytes} bytes"
    )
