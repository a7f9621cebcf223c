"""Conversations to ids: renders the template, keeps content apart from control.

Content could be encoded apart from the template in two ways: replace it by placeholders and put
it back after rendering, which breaks with every template that trims, splits or escapes content; or
disguise it such that it survives all that (``disguise.py``). This module does the second. Which
disguise a template leaves unharmed shows when its result, revealed, is compared with what the
template makes of the conversation as it is.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from edgerun.errors import InputError, PromptError
from edgerun.model.chat.beginning import BEGINNING, check_beginning
from edgerun.model.chat.conversation import (
    DEVELOPER,
    REPLY_KEYS,
    THOUGHT_KEYS,
    OwnText,
    check_tools,
    has_calls,
    map_texts,
    normalised,
    with_one_beginning,
    with_thoughts,
    without_developers,
)
from edgerun.model.chat.disguise import Disguise, StandIns, make_disguises
from edgerun.model.chat.switches import thinking_switches
from edgerun.model.chat.template import ChatTemplate, Message
from edgerun.model.text.ends import END_OF_TURN
from edgerun.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgerun.model.chat.reply import ReplyReader
    from edgerun.model.chat.thinking.form import AnswerStart, ThoughtForm
    from edgerun.model.chat.tools.functions import Functions
    from edgerun.model.chat.tools.markers import Markers
    from edgerun.model.chat.tools.recognition import Calling

# Names and strings with which a template looks things up or compares them.
WORD = re.compile(r"\.\s*(\w+)|(['\"])(\w+)\2")
# Strings that a template looks for in text: an argument of such a method, or left of `in`.
INSPECTED = re.compile(
    r"(?:split|startswith|endswith|find|index|count|partition|prefix|suffix)"
    r"\(\s*(?P<quote>['\"])(?P<argument>[^'\"\n]{1,80})(?P=quote)"
    r"|(?P<mark>['\"])(?P<member>[^'\"\n]{1,80})(?P=mark)\s+(?:not\s+)?in\b"
)
Context: TypeAlias = Mapping[str, Any]
Rendered: TypeAlias = tuple[str, Disguise, Collection[str]]  # and what the disguise spared
# Asks for some texts at a time, and is sent them, or why there is none.
Rendering: TypeAlias = Generator[list[Context], list[str | InputError], Rendered]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as text and ids.

    Attributes:
        text: the rendered template, content disguised.
        disguise: takes the disguise off.
        spared: strings that it left as they are.
        ids: token ids.
    """

    text: str
    disguise: Disguise
    spared: Collection[str]
    ids: tuple[int, ...]

    def follows(self, other: RenderedChat) -> bool:
        """Whether this text, disguised alike, begins with that of another conversation."""
        return self.disguise == other.disguise and self.text.startswith(other.text)


class ChatFormat:
    """A tokenizer and a template that belong together.

    Attributes:
        template: the template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Takes both from one bundle."""
        self._tokenizer = tokenizer
        self.template = template
        self._words = frozenset(match[1] or match[3] for match in WORD.finditer(template.source))
        self._thought_keys = [key for key in THOUGHT_KEYS if key in self._words]
        self._reply_tags = tokenizer.controls.tags(self._inspected())

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        before: RenderedChat | None = None,
        context: int | None = None,
        variables: Context | None = None,
    ) -> RenderedChat:
        """Renders and encodes a conversation that ends before a reply.

        Args:
            messages: the conversation, at least one message.
            tools: functions the model may call, as JSON schemas.
            before: an earlier result, see ``extended``; if this conversation goes on from there,
                its ids are kept as they are, whatever the text would encode to.
            context: tokens there is room for, if what is obviously longer is to be refused early.
            variables: further names for the template.

        Raises:
            PromptError: there is no message, one has an unusable role or content, or the
                conversation does not fit.
            InputError: the template is broken or refuses the conversation.
        """
        conversation = self._conversation(messages, tools, context, variables or {})
        (chat,) = self._rendered([conversation], context)
        if before and chat.follows(before):
            tail = chat.text[len(before.text) :]
            if self._tokenizer.starts_with_control(tail):
                ids = self._tokenizer.encode_template(tail, chat.disguise.reveal, first=False)
                return replace(chat, ids=(*before.ids, *ids))
        return self._encoded([chat])[0]

    def encode_many(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Context | None = None,
        context: int | None = None,
        beginning: str = "",
    ) -> list[RenderedChat]:
        """Encodes several conversations, which takes less time than one after the other.

        The template and the tokenizer are asked once for all that is short; see ``encode``.

        Args:
            conversations: see ``encode``, as are the others.
            tools: the same.
            variables: the same.
            context: the same.
            beginning: of the replies, with which they go on.

        Raises:
            InputError: replies of the model have something before their text.
        """
        each = [
            self._conversation(messages, tools, context, variables or {})
            for messages in conversations
        ]
        if not beginning:
            return self._encoded(self._rendered(each, context))
        each = [{**conversation, BEGINNING: beginning} for conversation in each]
        chats = self._rendered(each, context)
        for chat in chats:
            check_beginning(beginning, chat.text, self.template, self.thoughts)
        return self._encoded([self.extended(chat, beginning, ()) for chat in chats])

    @functools.cached_property
    def calling(self) -> Calling:
        """How the model calls functions; the template is asked when somebody wants to know."""
        from edgerun.model.chat.tools.recognition import recognise  # for few; a start counts

        thoughts = self.thoughts.texts if self.thoughts else ()
        return recognise(self._tokenizer, self.template, thoughts)

    @functools.cached_property
    def thoughts(self) -> ThoughtForm | None:
        """How the model marks what it thinks; None where nothing says that it does."""
        if self.template.is_default:
            return None
        from edgerun.model.chat.thinking.forms import thought_form

        return thought_form(self.template.source, self._tokenizer.controls)

    @functools.cached_property
    def switches(self) -> tuple[str, ...]:
        """Names by which the template is told whether to think; see ``thinking_switches``."""
        return () if self.template.is_default else thinking_switches(self.template)

    def answer_start(self, chat: RenderedChat) -> AnswerStart | None:
        """Where the answer begins among the ids of a reply to a conversation.

        Returns:
            None if the model does not think, or no ids tell.
        """
        if not self.thoughts:
            return None
        return self.thoughts.answer_start(self._tokenizer, begun=self.begins_thought(chat))

    def begins_thought(self, chat: RenderedChat) -> bool:
        """Whether a conversation ends in a thought, with which the reply goes on."""
        return self.thoughts is not None and self.thoughts.has_begun(chat.text)

    def reader(self, chat: RenderedChat, functions: Functions | None = None) -> ReplyReader | None:
        """Takes a reply to a conversation apart; None where it can have nothing but text.

        Args:
            chat: the conversation.
            functions: that were given to the model.

        Raises:
            InputError: functions cannot be given to it.
        """
        if not self.thoughts and not functions:
            return None
        from edgerun.model.chat.reply import ReplyReader
        from edgerun.model.chat.thinking.reader import ThoughtReader

        markers = self.calling.markers if functions else self._thought_markers
        calls = self.calling.reader(functions) if functions else None
        thoughts = None
        if self.thoughts:
            begun = self.begins_thought(chat)
            thoughts = ThoughtReader(self.thoughts, markers, begun=begun)
        return ReplyReader(markers, thoughts, calls)

    @functools.cached_property
    def _thought_markers(self) -> Markers:
        from edgerun.model.chat.tools.markers import Markers

        texts = self.thoughts.texts if self.thoughts else ()
        return Markers(self._tokenizer.controls, texts, self._tokenizer.hidden_ids)

    def extended(self, chat: RenderedChat, reply: str, reply_ids: Sequence[int]) -> RenderedChat:
        """Returns ``chat`` followed by a reply and the ids that the model generated for it."""
        text = chat.text + self._hidden_reply(reply, chat.disguise, chat.spared)
        return RenderedChat(text, chat.disguise, chat.spared, (*chat.ids, *reply_ids))

    def _conversation(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        context: int | None,
        variables: Context,
    ) -> Context:
        """What the template may name, checked."""
        if context is not None and len(messages) > context:  # none takes less than a token
            raise PromptError(
                f"the conversation has {len(messages)} messages, and the context is {context} "
                "tokens: leave some out",
                tokens=len(messages),
                context=context,
            )
        check_tools(tools)
        checked = with_one_beginning(normalised(messages))
        if DEVELOPER not in self._words:  # templates pass over roles that they do not know
            checked = without_developers(checked)
        checked = [with_thoughts(message, self._thought_keys) for message in checked]
        if has_calls(checked):
            from edgerun.model.chat.tools.history import suited

            checked = suited(checked, self.calling, self._tokenizer.controls)
        if context is not None:
            for message in checked:
                if message["role"] != "assistant":  # whose thoughts templates may leave out
                    self._tokenizer.check_fits(message.get("content") or "", context)
        return {**variables, "messages": checked, "tools": tools or None}

    def _rendered(
        self, conversations: Sequence[Context], context: int | None
    ) -> list[RenderedChat]:
        """Renders conversations, of which no ids are there yet; one step of all at a time."""
        renderings = [self._rendering(conversation) for conversation in conversations]
        chats: dict[int, RenderedChat] = {}
        asked = {index: next(rendering) for index, rendering in enumerate(renderings)}
        while asked:
            texts = self.template.render_many(list(chain.from_iterable(asked.values())))
            pending, asked = asked, {}
            for index, each in pending.items():
                try:
                    asked[index] = renderings[index].send(list(islice(texts, len(each))))
                except StopIteration as end:
                    text, disguise, spared = end.value
                    chats[index] = RenderedChat(text, disguise, spared, ())
        if context is not None:
            for chat in chats.values():
                self._tokenizer.check_fits(chat.disguise.reveal(chat.text), context)
        return [chats[index] for index in range(len(renderings))]

    def _encoded(self, chats: Sequence[RenderedChat]) -> list[RenderedChat]:
        """The same with ids."""
        encoded = self._tokenizer.encode_templates([(c.text, c.disguise.reveal) for c in chats])
        return [replace(chat, ids=tuple(ids)) for chat, ids in zip(chats, encoded, strict=True)]

    def _rendering(self, context: Context) -> Rendering:
        """Renders a conversation.

        The first disguise counts with which the template says the same as without. If a template
        looks for control tokens in content there is none, and then it does not see them.

        Raises:
            InputError: see ``encode``; or text would be lost with every disguise.
        """
        stand_ins, marks = make_disguises(
            self._tokenizer.controls, [context, self.template.source, self.template.variables]
        )
        attempts: list[tuple[Disguise, Collection[str]]] = [
            (stand_ins, ()),
            (stand_ins, self._words),
            (marks, self._words),
        ]
        # The first attempt is nearly always the last: it goes along with the plain text.
        hidden = self._hidden(context, *attempts[0])
        plain, *first = yield [context, hidden] if hidden != context else [context]
        if isinstance(plain, InputError):
            raise plain
        was_rendered = False
        failure = InputError("")
        for number, (disguise, spared) in enumerate(attempts):
            if number > 0:
                hidden = self._hidden(context, disguise, spared)
            if hidden == context:
                return plain, disguise, spared
            (text,) = first if number == 0 else (yield [hidden])
            if isinstance(text, InputError):
                failure = text
                continue
            was_rendered = True
            if disguise.reveal(text) == plain:
                return text, disguise, spared
        if not was_rendered:
            raise InputError(
                f"{failure}; this happens only when its text is kept apart from control tokens"
            ) from failure
        return (yield from self._unseen(context, stand_ins))

    def _unseen(self, context: Context, stand_ins: StandIns) -> Rendering:
        """Renders a conversation for a template that looks for control tokens in content.

        If it says the same with other characters in their place, all that differs is that it does
        not see them. If not, it spells characters in a way that no disguise can be taken off.

        Raises:
            PromptError: text would be lost.
        """
        ordinary, as_ordinary = stand_ins.plainly()
        for spared in ((), self._words):
            hidden = self._hidden(context, stand_ins, spared)
            text, expected = yield [hidden, self._hidden(context, ordinary, spared)]
            if isinstance(text, str) and as_ordinary(text) == expected:
                return text, stand_ins, spared
        as_json = json.dumps(hidden, ensure_ascii=False)
        spelled = [real for real, other in stand_ins.characters.items() if other in as_json]
        raise PromptError(
            f"the chat template spells {' and '.join(map(repr, spelled))} of the conversation in a "
            "way that cannot be kept apart from control tokens; leave that out"
        )

    def _hidden(
        self, context: Context, disguise: Disguise, spared: Collection[str]
    ) -> dict[str, Any]:
        def hide(text: str) -> str:
            return disguise.hide(text, spared)

        def hide_key(key: str) -> str:
            return disguise.hide(key, self._words)

        def hide_message(message: Message) -> dict[str, Any]:
            replies = REPLY_KEYS if message["role"] == "assistant" else ()
            hidden = map_texts({**message, "role": ""}, hide, hide_key)
            hidden_replies = {
                key: self._hidden_reply(message[key], disguise, spared)
                for key in replies
                if isinstance(message.get(key), str)
            }
            return {**hidden, **hidden_replies, "role": message["role"]}

        # The names of variables are the caller's, like the names of arguments.
        hidden = {name: map_texts(value, hide, hide_key) for name, value in context.items()}
        return {**hidden, "messages": [hide_message(message) for message in context["messages"]]}

    def _hidden_reply(self, reply: str, disguise: Disguise, spared: Collection[str]) -> str:
        """A model's own text, in which the tags of its replies stay effective."""
        if isinstance(reply, OwnText):
            return self._hidden_reply(reply.said, disguise, spared) + reply.written
        pieces = self._reply_tags.split(reply)
        return "".join(
            piece if index % 2 else disguise.hide(piece, spared)
            for index, piece in enumerate(pieces)
        )

    def _inspected(self) -> Iterator[str]:
        """Control tokens that the template looks for in text, but none that end a turn."""
        never = {*END_OF_TURN, *self._tokenizer.special_token_variables().values()}
        for match in INSPECTED.finditer(self.template.source):
            literal = match["argument"] or match["member"]
            yield from (
                name
                for name in self._tokenizer.controls.names
                if name in literal and name not in never
            )
