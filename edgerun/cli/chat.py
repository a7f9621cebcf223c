"""``edgerun chat``: a conversation at the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.commands import COMMANDS

if TYPE_CHECKING:
    from edgerun.cli.terminal import ReadLine
    from edgerun.engine.stats import Stats
    from edgerun.llm import LLM, ChatSession

EXAMPLES = options.examples(
    "edgerun chat",
    'edgerun chat ./my-model --system "Answer in one sentence."',
    "edgerun chat --continue",
    "edgerun chat --when-full drop-oldest",
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("chat", help=COMMANDS["chat"], epilog=EXAMPLES)(chat)


def chat(
    model: options.Model = None,
    named: options.NamedModel = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    threads: options.Threads = None,
    backend: options.BackendName = None,
    device: options.Device = None,
    context: options.Context = None,
    kv_cache: options.KVCacheType = "fp16",
    pack: options.Pack = None,
    stats: options.ShowStats = False,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun.cli.terminal import reader
    from edgerun.errors import PromptError
    from edgerun.model.chat_template import ChatTemplate

    ChatTemplate.prepare()
    settings = options.given(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop or None,
    )
    options.check_sampling(settings)
    loading = {"threads": threads, "backend": backend, "device": device}
    loading |= {"context": context, "kv_cache": kv_cache, "pack": pack}
    with options.load(options.model_of(model, named), **loading) as llm:
        if not llm.has_chat_template:
            options.say("this model has no chat format, so it may not answer like a partner")
        conversation = Conversation(llm, settings, show_stats=stats)
        conversation.session.system = system or ""
        conversation.hold(reader())
        if conversation.unanswered and not sys.stdin.isatty():  # a script looks at the exit code
            raise PromptError(f"{conversation.unanswered} of the messages got no reply, see above")


class Conversation:
    """The state of ``edgerun chat``.

    Attributes:
        llm: the model.
        session: what was said.
        settings: sampling parameters that were set.
        last: timings of the last reply.
        done: whether to quit.
        unanswered: messages that were refused.
    """

    def __init__(self, llm: LLM, settings: dict[str, Any], *, show_stats: bool = False) -> None:
        self.llm = llm
        self.session: ChatSession = llm.session()
        self.settings = settings
        self.last: Stats | None = None
        self.done = False
        self.unanswered = 0
        self._show_stats = show_stats

    def hold(self, read: ReadLine) -> None:
        """Reads and answers until the input ends."""
        while not self.done:
            try:
                text = read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                continue  # clears the line, as in a shell
            if text.strip():
                self.handle(text)

    def handle(self, text: str) -> None:
        """Runs a command or answers a message; the caller's mistakes become one line."""
        from edgerun.cli.chat_commands import run_command
        from edgerun.errors import EdgerunError

        try:
            if text.startswith("/"):
                run_command(self, text)
            else:
                self.answer(text)
        except EdgerunError as error:
            options.say(str(error))
            self.unanswered += not text.startswith("/")
        except KeyboardInterrupt:
            print(" [stopped]", file=sys.stderr, flush=True)

    def answer(self, text: str) -> None:
        """Streams a reply to stdout; Ctrl-C stops it and keeps the chat."""
        from edgerun.cli.reply import reply_writer

        stream, write = self.session.send(text, **self.settings), reply_writer()
        try:
            with stream:
                for piece in stream:
                    write(piece)
        except KeyboardInterrupt:
            print(" [stopped]", end="", file=sys.stderr, flush=True)
        print(flush=True)
        self.last = stream.completion.stats
        if stream.completion.finish_reason == "context":
            options.say("the context is full: /clear starts again")
        if self._show_stats:
            from edgerun.cli.report import show_stats

            show_stats(self.llm, self.last)
