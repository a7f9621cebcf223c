"""Chat templates: conversations to prompt text, in a process that cannot get out of hand.

Templates are Jinja, as Hugging Face's ``apply_chat_template`` runs them, with its functions and
filters (``raise_exception``, ``strftime_now``, ``tojson``, ``{% generation %}``), rendered by
minijinja in the sandbox (``renderer.py``): a template that exceeds its limits kills a child
process, not the caller.

Some templates, of models that see pictures as well, read content in parts alone: they go through
``[{"type": "text", "text": ...}]`` and would say nothing of a plain text. Whether one does shows
when it renders a short question both ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from edgerun.errors import InputError
from edgerun.model.sandbox.batches import batches
from edgerun.model.sandbox.process import sandbox

Message: TypeAlias = Mapping[str, Any]

MAX_SOURCE_CHARACTERS = 1 << 18
MAX_MEMORY_BYTES = 256 << 20
FUEL = 1_000_000
CPU_S = 0.045
CPU_S_PER_BYTE = 5e-8  # of the conversation: an ordinary template needs a tenth of it
PARSE_CPU_S = 1.0  # a template of the greatest length needs a twentieth of it
CPU_AS_BYTES = 2048  # in a batch, so that few of those that take all their time are in one
RENDERER = "edgerun.model.chat.renderer"
# minijinja does not know transformers' {% generation %}; it only marks training text.
GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
PART = re.compile(r"\btext\b")  # what a template must name that reads parts
QUESTION = "Which numbers are prime?"
# minijinja hands 1.0 to filters as 1.
WHOLE_FLOAT = re.compile(r"(?<![\w.])(\d+\.0+)(?=\s*\|\s*tojson\b)")

DEFAULT_TEMPLATE = """\
{{ bos_token }}{% for message in messages -%}
{{ message.role | capitalize }}: {{ message.content | trim }}

{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
DEFAULT_STOPS = ("\nUser:", "\nSystem:")


class UnfinishedError(InputError):
    """A limit ended a render: it says nothing of the template, which may do with it next time."""


class ChatTemplate:
    """One model's template.

    Attributes:
        source: Jinja text.
        variables: what it may name besides the conversation, such as ``bos_token``.
        own: names among them that are the tokenizer's, and nobody else's to say.
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
        self.own = frozenset(self.variables)
        self._reads_parts = None if PART.search(self.source) else False

    @classmethod
    def prepare(cls) -> None:
        """Starts the sandbox without waiting for it, so that the first render is fast."""
        sandbox().start(RENDERER)

    def check(self) -> None:
        """Parses the template.

        Raises:
            InputError: it is broken: no conversation can be rendered.
        """
        answer = self._asked([], PARSE_CPU_S)
        if "rendered" not in answer:
            raise InputError(f"the chat template cannot be parsed: {answer['error']}")

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
            **variables,
            "messages": list(messages),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        rendered = next(self.render_many([context]))
        if isinstance(rendered, InputError):
            raise rendered
        return rendered

    def render_many(self, conversations: Sequence[Mapping[str, Any]]) -> Iterator[str | InputError]:
        """Renders several conversations, which takes less time than one after the other.

        Args:
            conversations: what the template may name of each, ``messages`` and ``tools`` among it.

        Yields:
            Of each its text, or what ``render`` would raise.

        Raises:
            InputError: the messages hold something that is not JSON.
        """
        if self._reads_parts is None:
            self._reads_parts = self._asks_for_parts()
        if self._reads_parts:
            conversations = list(map(_in_parts, conversations))
        payloads = self._payloads(conversations)
        for batch in batches([len(payload) + CPU_AS_BYTES for payload in payloads]):
            yield from self._rendered(payloads[batch])

    def _payloads(self, conversations: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """What the template may name of each, as JSON."""
        named = {**self.variables, "add_generation_prompt": True}
        try:
            return [json.dumps({**named, **each}).encode() for each in conversations]
        except (TypeError, ValueError) as error:
            raise InputError(f"the messages hold something that is not JSON: {error}") from error

    def _asks_for_parts(self) -> bool:
        """Whether a question appears in what is rendered only if it is in parts.

        Raises:
            UnfinishedError: nobody knows.
        """
        plain = {"messages": [{"role": "user", "content": QUESTION}], "tools": None}
        texts = map(finished, self._rendered(self._payloads([plain, _in_parts(plain)])))
        appears = [isinstance(text, str) and QUESTION in text for text in texts]
        return appears == [False, True]

    def _rendered(self, payloads: Sequence[bytes]) -> Iterator[str | InputError]:
        """Has the sandbox render some conversations; each alone if they fail together.

        Then nothing is rendered before it is asked for: a template that takes all the time that it
        may has failed with the first.
        """
        cpu_s = sum(CPU_S + CPU_S_PER_BYTE * len(payload) for payload in payloads)
        answer = self._asked(payloads, cpu_s)
        if "rendered" in answer:
            yield from map(_text_or_refusal, answer["rendered"])
        elif len(payloads) > 1:
            for payload in payloads:
                yield from self._rendered([payload])
        else:
            kind = UnfinishedError if answer.get("is_limit") else InputError
            yield kind(f"the chat template cannot be rendered: {answer['error']}")

    def _asked(self, payloads: Sequence[bytes], cpu_s: float) -> dict[str, Any]:
        """What the renderer answers in the sandbox."""
        source = WHOLE_FLOAT.sub(r"whole_float(\1)", GENERATION.sub(_as_condition, self.source))
        return sandbox().ask(
            RENDERER,
            {"source": source, "fuel": FUEL},
            b"[" + b",".join(payloads) + b"]",
            cpu_s=cpu_s,
            memory_bytes=MAX_MEMORY_BYTES,
        )


def finished(rendered: str | InputError) -> str | InputError:
    """The same, where it is what the template itself has to say.

    Raises:
        UnfinishedError: it is not.
    """
    if isinstance(rendered, UnfinishedError):
        raise rendered
    return rendered


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


def _in_parts(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """The same conversation, with texts as content of one part."""
    messages = [
        {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content := message.get("content"), str)
        else message
        for message in conversation["messages"]
    ]
    return {**conversation, "messages": messages}


def _text_or_refusal(rendered: Mapping[str, str]) -> str | InputError:
    if "text" in rendered:
        return rendered["text"]
    return InputError(f"the chat template refuses this conversation: {rendered['refusal']}")


def _as_condition(tag: re.Match[str]) -> str:
    return f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}"
