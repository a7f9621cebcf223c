"""``edgerun completion``: words for the shell's Tab key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.commands import application, command_names

# Each asks `edgerun completion words` with what was typed, the unfinished word last, and offers
# files where that answers nothing.
SCRIPTS = {
    "bash": """\
_edgerun() {
    local IFS=$'\\n'
    COMPREPLY=($(edgerun completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _edgerun edgerun""",
    "zsh": """\
_edgerun() {
    local -a found
    found=(${(f)"$(edgerun completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _edgerun edgerun""",
    "fish": """\
complete -c edgerun -a \
'(edgerun completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'""",
}
EXAMPLES = options.examples(
    "edgerun completion bash >> ~/.bashrc",
    "edgerun completion zsh >> ~/.zshrc",
    "edgerun completion fish > ~/.config/fish/completions/edgerun.fish",
)


def completion(
    shell: Annotated[str, typer.Argument(help=f"The shell: {', '.join(SCRIPTS)}.")],
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    from edgerun.errors import InputError

    if shell == "words":
        print("\n".join(candidates(words or [""])))
    elif shell in SCRIPTS:
        print(SCRIPTS[shell])
    else:
        raise InputError(f"there is no script for {shell!r}: expected {', '.join(SCRIPTS)}")


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word may become, given those before it; nothing where a file may stand."""
    *before, begun = words
    if not before:
        return _beginning(begun, command_names())
    from typer.main import get_command

    command: Any = get_command(application(before[:1]))
    for word in before:
        command = getattr(command, "commands", {}).get(word, command)
    members = list(getattr(command, "commands", {}))
    if members and not begun.startswith("-"):
        return _beginning(begun, members)
    if not begun.startswith("-"):
        return []
    names = [name for entry in command.params for name in (*entry.opts, *entry.secondary_opts)]
    return _beginning(begun, [name for name in (*names, "--help") if name.startswith("--")])


def _beginning(begun: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(begun)]
