"""``edgerun chat``: a conversation at the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.messages import say

if TYPE_CHECKING:
    from edgerun.cli.conversation.state import Conversation
    from edgerun.cli.conversation.store import ChatStore
    from edgerun.llm.llm import LLM

EXAMPLES = options.examples(
    "edgerun chat",
    'edgerun chat ./my-model --system "Answer in one sentence."',
    "edgerun chat --continue",
    "edgerun chat --when-full drop-oldest",
)


@options.with_chatting
@options.with_sampling
def chat(
    model: options.Model = None,
    named: options.NamedModel = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="System message.")
    ] = None,
    *,
    sampling: dict[str, Any],
    loading: dict[str, Any],
    hide_thinking: options.HideThinking = False,
    stats: options.ShowStats = False,
    when_full: Annotated[
        str,
        typer.Option(
            "--when-full",
            metavar="HOW",
            help="When the context is full: stop and say so, or drop-oldest, which forgets the "
            "oldest messages and says so each time.",
        ),
    ] = "stop",
    go_on: Annotated[
        bool, typer.Option("--continue", help="Go on with the last chat with this model.")
    ] = False,
) -> None:
    from edgerun.cli.conversation.loop import hold
    from edgerun.cli.conversation.reader import reader
    from edgerun.cli.conversation.state import WHEN_FULL, Conversation
    from edgerun.cli.conversation.store import ChatStore
    from edgerun.env import settings as environment
    from edgerun.errors import EdgerunError, InputError, PromptError
    from edgerun.model.chat.template import ChatTemplate

    if when_full not in WHEN_FULL:
        raise InputError(f"--when-full is {when_full!r}; expected {' or '.join(WHEN_FULL)}")
    ChatTemplate.prepare()
    store, at_terminal = ChatStore(environment().state_dir), sys.stdin.isatty()
    with options.load(options.model_of(model, named), **loading) as llm:
        if not llm.has_chat_template:
            say("this model has no chat format, so it may not answer like a partner")
        conversation = Conversation(
            llm,
            sampling,
            when_full=when_full,
            store=store if at_terminal or go_on else None,
            hides_thinking=hide_thinking,
            show_stats=stats,
        )
        conversation.check(sampling)
        if at_terminal:
            greet(llm)
        if go_on:
            _go_on(conversation, store)
        if system is not None:
            conversation.session.system = system
        hold(conversation, reader(conversation.fill, store))
        if conversation.failures and not at_terminal:  # a script looks at the exit code
            kind = EdgerunError if conversation.has_failed else PromptError
            raise kind(f"{conversation.failures} of the lines failed, see above")


def greet(llm: LLM) -> None:
    """Says which model this is, and how to find out more."""
    from edgerun.cli.screen.tables import size
    from edgerun.cli.screen.visible import visible
    from edgerun.llm.loading import is_own_model, model_name

    model = llm.model
    threads = f"{model.threads} thread{'' if model.threads == 1 else 's'}"
    is_own = is_own_model(model.path)
    name = "edgerun's own small model" if is_own else visible(model_name(model.path))
    nbytes = sum(file.stat().st_size for file in model.path.glob("*") if file.is_file())
    properties = f"{size(nbytes)}, context {model.context} tokens, {threads}"
    print(f"{name}: {properties}\n/help shows the commands, Ctrl-D quits.", file=sys.stderr)


def _go_on(conversation: Conversation, store: ChatStore) -> None:
    """Loads the last chat with this model, if there is one."""
    digest = conversation.llm.model.digest
    if not store.last_chat(digest).exists():
        say("there is no chat with this model to go on with: this is a new one")
        return
    conversation.session.messages = [*store.read(digest)]
    conversation.is_kept = True
    say(f"going on with the last chat ({conversation.fill()} tokens); /show prints it")
