"""Chat templates: conversations to prompt text, in a process that cannot get out of hand.

Templates are Jinja, as Hugging Face's ``apply_chat_template`` runs them, with its functions and
filters (``raise_exception``, ``strftime_now``, ``tojson``, ``{% generation %}``), rendered by
minijinja in a child process (see ``template_worker``). The child starts with the first template
and serves all later ones; a template that exceeds its limits kills the child, not the caller.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from edgerun.errors import InputError, MissingDependencyError

Message: TypeAlias = Mapping[str, Any]

MAX_SOURCE_CHARACTERS = 1 << 18
MAX_MEMORY_BYTES = 256 << 20
FUEL = 1_000_000
CPU_S = 0.045
CPU_S_PER_BYTE = 5e-8  # of the conversation: an ordinary template needs a tenth of it
WALL_S = 20.0  # for a machine that is busy with other things
START_S = 30.0
WORKER = Path(__file__).with_name("template_worker.py")
# minijinja does not know transformers' {% generation %}; it only marks training text.
GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
# minijinja hands 1.0 to filters as 1.
WHOLE_FLOAT = re.compile(r"(?<![\w.])(\d+\.0+)(?=\s*\|\s*tojson\b)")

DEFAULT_TEMPLATE = """\
{{ bos_token }}{% for message in messages -%}
{{ message.role | capitalize }}: {{ message.content | trim }}

{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
DEFAULT_STOPS = ("\nUser:", "\nSystem:")


class ChatTemplate:
    """One model's template.

    Attributes:
        source: Jinja text.
        variables: what it may name besides the conversation, such as ``bos_token``.
        is_default: the model has no template of its own.
    """

    def __init__(self, source: str | None, variables: Mapping[str, Any] | None = None) -> None:
        """Takes a template.

        Args:
            source: Jinja text; None or empty for the plain default.
            variables: ``bos_token``, ``eos_token`` and others that the template may name.

        Raises:
            InputError: the template is too long to be one.
        """
        self.is_default = not source
        self.source = source or DEFAULT_TEMPLATE
        if len(self.source) > MAX_SOURCE_CHARACTERS:
            raise InputError(
                f"the chat template has {len(self.source)} characters; "
                f"at most {MAX_SOURCE_CHARACTERS} are accepted"
            )
        self.variables = dict(variables or {})

    @classmethod
    def prepare(cls) -> None:
        """Starts the child process without waiting for it, so that the first render is fast."""
        _worker()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: ``role`` and ``content`` of each.
            add_generation_prompt: end with the start of a reply.
            tools: JSON schemas of functions that the model may call.
            variables: further names, for example ``enable_thinking``.

        Raises:
            InputError: the template is broken, refuses the conversation, or exceeds its limits.
        """
        context = {
            **self.variables,
            **variables,
            "messages": list(messages),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        source = WHOLE_FLOAT.sub(r"whole_float(\1)", GENERATION.sub(_as_condition, self.source))
        answer = _worker().render(source, context)
        if "text" in answer:
            return str(answer["text"])
        if answer["refused"]:
            raise InputError(f"the chat template refuses this conversation: {answer['error']}")
        raise InputError(f"the chat template cannot be rendered: {answer['error']}")


def template_source(
    tokenizer_config: Mapping[str, Any], jinja_file: str | None = None
) -> str | None:
    """Finds a model's template: ``chat_template.jinja`` or the entry in tokenizer_config.json.

    Of several named templates the one called ``default`` counts.
    """
    if jinja_file:
        return jinja_file
    entry = tokenizer_config.get("chat_template")
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        entry = named.get("default")
    return entry if isinstance(entry, str) else None


def _as_condition(tag: re.Match[str]) -> str:
    return f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}"


class _Worker:
    """The child process; replaced when it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        with self._lock:
            self._start()

    def render(self, source: str, context: Mapping[str, Any]) -> dict[str, Any]:
        try:
            size = len(json.dumps(context))
            cpu_us = int(1e6 * (CPU_S + CPU_S_PER_BYTE * size))
            request = {"source": source, "context": context, "fuel": FUEL, "cpu_us": cpu_us}
            line = json.dumps(request).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise InputError(f"the messages hold something that is not JSON: {error}") from error
        with self._lock:
            return self._ask(line)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def forget(self) -> None:
        """In a forked process: leaves the child to the parent, which goes on asking it."""
        process, self._process = self._process, None
        self._lock = threading.Lock()
        if process is not None:
            process.poll()  # it is no child of this process, so there is nothing to wait for
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _ask(self, line: bytes) -> dict[str, Any]:
        answer = self._exchange(line, WALL_S) if self._await_ready() else b""
        if answer.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(answer)
            return reply
        self.close()
        reason = f"it needs more time or memory ({MAX_MEMORY_BYTES >> 20} MB) than is allowed"
        return {"error": reason, "refused": False}

    def _await_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        if not self._ready:
            self._ready = self._exchange(b"", START_S).endswith(b"\n")
            if not self._ready:
                self.close()
                raise MissingDependencyError(
                    f"the process for chat templates ({sys.executable}) does not start"
                )
        return True

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Writes a line, reads a line; kills the process when that takes too long."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        try:
            timer.start()
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return b""
        except BaseException:  # Ctrl-C: the answer would be taken for the next request's
            self.close()
            raise
        finally:
            timer.cancel()

    def _start(self) -> None:
        found = importlib.util.find_spec("minijinja")
        if found is None or found.origin is None or not sys.executable:
            raise MissingDependencyError(
                "chat templates need minijinja and a Python executable: pip install minijinja"
            )
        self._ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at the terminal is for the chat, not for the child
        )
        setup = {"path": [str(Path(found.origin).parents[1])], "max_bytes": MAX_MEMORY_BYTES}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(setup).encode() + b"\n")
        self._process.stdin.flush()


@functools.cache
def _worker() -> _Worker:
    worker = _Worker()
    atexit.register(worker.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=worker.forget)
    return worker
