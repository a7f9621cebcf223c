"""What ``edgerun run`` is asked: which word is the model, which the text, and what stdin adds."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from edgerun.cli.options import model_of
from edgerun.cli.screen.messages import say
from edgerun.errors import InputError, PromptError
from edgerun.llm.checkpoints import HUB, is_checkpoint
from edgerun.model.refusals import GGUF_SUFFIX, LLAMA2C_SUFFIX, why_no_model

MAX_STDIN_BYTES = 64 << 20
PATIENCE_S = 2.0  # after which a terminal is told what is waited for
STDIN = "-"
IF_TEXT = "if this is the text, put it behind -p"
# A lone word like these is rather a folder that is not there, or a model of somebody's store.
NAME_OF_A_MODEL = re.compile(r"[\w.~:/\\-]*([/\\:_~\d]|\w[.-]\w)[\w.~:/\\-]*", re.ASCII)


def model_and_text(
    words: Sequence[str], named: Path | None, prompt: str | None
) -> tuple[Path | None, str | None]:
    """Tells a model from a text: an argument that is a folder is the model.

    Args:
        words: arguments, two at most.
        named: the model of ``-m``, or None.
        prompt: the text of ``-p``, or None.

    Returns:
        The model, None for the one that comes along, and the text, None if there is none here.

    Raises:
        InputError: it cannot be told, or something is given twice.
    """
    folders = [word for word in words if os.path.isdir(word) or is_checkpoint(word)]
    if len(words) == 2 and len(folders) != 1:
        if not folders and (meant := _meant(words)) is not None:
            raise InputError(f"{why_no_model(Path(meant))}; {IF_TEXT}")
        are = "both are models" if folders else f"neither {words[0]!r} nor {words[1]!r} is one"
        raise InputError(
            f"expected a model, which is a folder or a GGUF file, and a text, but {are}: name the "
            "model with -m and the text with -p"
        )
    if prompt is not None and len(words) == 1:
        folders = list(words)  # nothing else is left for it to be
    texts = [word for word in words if word not in folders]
    if texts and prompt is not None:
        raise InputError(f"the text is given twice, as {texts[0]!r:.40} and with -p: leave one out")
    if texts:
        _check_text(texts[0])
    model = model_of(Path(folders[0]) if folders else None, named)
    return model, texts[0] if texts else prompt


def _meant(words: Sequence[str]) -> str | None:
    """Which of two words is most likely meant as a model, though neither is one."""
    files = [word for word in words if os.path.lexists(word)]
    weights = [word for word in files if word.lower().endswith((GGUF_SUFFIX, LLAMA2C_SUFFIX))]
    names = [word for word in words if word in files or NAME_OF_A_MODEL.fullmatch(word)]
    return next(iter([*weights, *names]), None)


def _check_text(text: str) -> None:
    """Refuses a lone word that is more likely meant as a model."""
    if os.path.isfile(text):
        raise InputError(f"{why_no_model(Path(text))}; {IF_TEXT}")
    if NAME_OF_A_MODEL.fullmatch(text):
        raise InputError(
            f"there is no model at {text}: name a folder, a GGUF file or a model of Hugging Face's "
            f"hub ({HUB}owner/name), or, if this is the text, put it behind -p"
        )


def gather(text: str | None, *, may_be_empty: bool = False) -> str:
    """The prompt: the text, then a blank line, then what comes through stdin.

    Raises:
        PromptError: there is nothing, or stdin is too long or no UTF-8.
    """
    if text is None and sys.stdin.isatty():
        raise PromptError(
            'there is no prompt: give one as in `edgerun run "Tell me a story."`, or through stdin'
        )
    piped = "" if sys.stdin.isatty() and text != STDIN else _read_stdin()
    parts = [part for part in (None if text == STDIN else text, piped) if part]
    if not parts and (text is None or not may_be_empty):
        raise PromptError("the prompt is empty: give some text as an argument or through stdin")
    return "\n\n".join(parts)


def _read_stdin() -> str:
    _tell_if_nothing_comes()
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise PromptError(f"stdin has more than {MAX_STDIN_BYTES} bytes")
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"stdin is not UTF-8 text (byte {error.start}): convert it, for example with iconv"
        ) from error


def _tell_if_nothing_comes() -> None:
    """A pipe that nobody writes to nor closes would look like a program that hangs."""
    import select

    try:
        ready = select.select([sys.stdin.fileno()], [], [], PATIENCE_S)[0]
    except (OSError, ValueError):  # no file, or a system that selects sockets only
        return
    if not ready:
        say("reading stdin until it ends; `< /dev/null` says that there is nothing")
