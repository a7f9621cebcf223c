"""``edgerun run``: one prompt, one reply."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.messages import MEMORY_FULL, say

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM, Completion, TextStream
    from edgerun.model.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 512
# One word is a model if there is such a folder, and else a text.
_Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)]
_Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="What to answer or to continue.")]
EXAMPLES = options.examples(
    'edgerun run "Tell me a story about a dog."',
    'edgerun run ./my-model "Once upon a time" -n 64 --seed 1 --stats',
    'edgerun run ./my-model -p "Sum this up:" < notes.txt',
    "echo Hello | edgerun run --json",
    "edgerun run ./my-coder -p 'def add(a, b):' --suffix 'print(add(1, 2))'",
)


@options.with_chatting
@options.with_all_sampling(max_tokens=f"{DEFAULT_MAX_TOKENS}; none for models that think")
def run(
    model: _Model = None,
    text: _Text = None,
    named: options.NamedModel = None,
    prompt: options.Prompt = None,
    *,
    sampling: dict[str, Any],
    system: options.System = None,
    raw: options.Raw = False,
    suffix: options.Suffix = None,
    loading: dict[str, Any],
    as_json: options.Json = False,
    hide_thinking: options.HideThinking = False,
    stats: options.ShowStats = False,
) -> None:
    """The prompt goes to a model with a chat format as a user's message."""
    from edgerun.cli.prompt import gather, model_and_text

    plain = "--suffix" if suffix is not None else "--raw" if raw else ""
    _check_effects(sampling, loading, plain=plain, as_json=as_json, hide_thinking=hide_thinking)
    words = [word for word in (model, text) if word is not None]
    folder, texts = model_and_text(words, named, prompt)
    whole_prompt = gather(texts, may_be_empty=suffix is not None)
    if not plain:
        from edgerun.model.chat.template import ChatTemplate

        ChatTemplate.prepare()
    with options.load(folder, **loading) as llm:
        is_cut = "max_tokens" not in sampling and (plain or not llm.thinks)  # thoughts take long
        limit = {"max_tokens": DEFAULT_MAX_TOKENS} if is_cut else {}
        behind = {} if suffix is None else {"suffix": suffix}
        stream = start(llm, whole_prompt, system, plain, {**sampling, **limit, **behind})
        completion = _finish(stream, quiet=as_json, hides_thinking=hide_thinking)
        if as_json:
            devices = [asdict(report) for report in llm.reports()]
            fields = summary(completion) | ({"devices": devices} if devices else {})
            if "logprobs" in sampling:
                fields["logprobs"] = logprobs_of(completion, llm.tokenizer)
            print(json.dumps(fields, ensure_ascii=False))
        else:
            _say_why_it_ended(completion, by_default=bool(is_cut))
        options.say_forecast(llm, corrected=True)
        if stats:
            from edgerun.cli.screen.report import show_stats

            show_stats(llm, completion.stats)


def _check_effects(
    sampling: dict[str, Any],
    loading: dict[str, Any],
    *,
    plain: str,
    as_json: bool,
    hide_thinking: bool,
) -> None:
    """Makes sure that no option is given where it would do nothing.

    ``plain`` is the option that does without the chat format, if there is one.

    Raises:
        InputError: one is.
    """
    from edgerun.errors import InputError

    if plain and {"think", "template_values"} & loading.keys():
        raise InputError(
            f"--think, --no-think and --template-value are for the chat format: leave {plain} out"
        )
    if "logprobs" in sampling and not as_json:
        raise InputError("--logprobs is for the object that --json prints: add --json")
    if hide_thinking and as_json:
        raise InputError("--json has thoughts apart from the text: leave --hide-thinking out")


def _say_why_it_ended(completion: Completion, *, by_default: bool) -> None:
    """Tells of an end that the user may not expect; ``by_default`` if nobody set the limit."""
    if completion.finish_reason == "context":
        say("the reply ends here because the context is full")
    elif completion.finish_reason == "memory":
        say(MEMORY_FULL)
    elif completion.finish_reason == "length" and by_default:
        say(f"the reply ends here after {DEFAULT_MAX_TOKENS} tokens; -n sets the limit")


def summary(completion: Completion) -> dict[str, Any]:
    """What ``--json`` prints; the names are a contract."""
    return {
        "text": completion.text,
        "thinking": completion.thinking,
        "ids": completion.ids,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.ids),
        "finish_reason": completion.finish_reason,
        "timings": completion.stats.timings(),
    }


def logprobs_of(completion: Completion, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """What ``--json`` prints with ``--logprobs``; the names are a contract."""

    def fields(id_: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.token_bytes(id_).decode("utf-8", "replace")
        return {"id": id_, "text": text, "logprob": logprob}

    return [
        {
            **fields(entry.id, entry.logprob),
            "top": [fields(id_, logprob) for id_, logprob in entry.top],
        }
        for entry in completion.logprobs
    ]


def start(
    llm: LLM, text: str, system: str | None, plain: str, sampling: dict[str, Any]
) -> TextStream:
    """Begins a reply to a text, in the chat format of a model that has one.

    ``plain`` is the option that does without it, if there is one.
    """
    if plain or not llm.has_chat_template:
        if system is not None:
            from edgerun.errors import InputError

            raise InputError(
                "--system needs a chat format: "
                + (f"leave {plain} out" if plain else "this model has none")
            )
        return llm.stream(text, **sampling)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.stream_chat(messages, **sampling)


def _finish(stream: TextStream, *, quiet: bool, hides_thinking: bool) -> Completion:
    if quiet:
        return stream.result()
    from edgerun.cli.screen.reply import show_reply

    try:
        show_reply(stream, hides_thinking=hides_thinking)
    except KeyboardInterrupt:
        if stream.completion.ids and sys.stdout.isatty():  # so the notice has a line of its own
            print(flush=True)
        raise
    print(flush=True)
    return stream.completion
