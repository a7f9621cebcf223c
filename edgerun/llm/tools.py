"""What a chat is told beside its messages: functions to call, and values for the template."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgerun.engine.chooser.params import SamplingParams
from edgerun.errors import InputError, SamplingError
from edgerun.model.chat.switches import check_readable, check_switches
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.values import shown, suggestion

if TYPE_CHECKING:
    from edgerun.engine.constraints.either import EitherForm
    from edgerun.engine.sampling.structure import Structure
    from edgerun.model.chat.tools.functions import Functions
    from edgerun.model.chat.tools.recognition import Calling

AUTO, NONE, REQUIRED = "auto", "none", "required"
CHOICES = (AUTO, NONE, REQUIRED)
MOST_LISTED = 8
# How refusals begin, and what to do where calls can have no grammar.
CALL_FORCED = "tool_choice asks for a call"
CALL_OR_ANSWER = "tools are given, and a schema of answers beside them"
NO_GRAMMAR = {CALL_FORCED: 'use tool_choice="auto"', CALL_OR_ANSWER: "leave out one of the two"}
WHY_NOT_S = 1.0  # after which no more functions are tried, to say which cannot be called


@dataclass(frozen=True)
class ChatSettings:
    """What conversations have in common.

    Attributes:
        functions: that the model may call; None for none.
        forced: names of those of which a reply must call one; none where it may say something else.
        several: whether such a reply may call more than one.
        values: for the chat template, by name.
    """

    functions: Functions | None = None
    forced: tuple[str, ...] = ()
    several: bool = True
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """What the chat template lists."""
        return self.functions.tools if self.functions else None


class CallVocabulary:
    """The tokens of a model, those that take part in calls as parts of a reply's text.

    Attributes:
        vocab_size: see ``Vocabulary``.
        eos_ids: the same.
        hidden_ids: the same.
    """

    def __init__(self, tokenizer: Tokenizer, marker_ids: Iterable[int]) -> None:
        """Takes the model's tokenizer, and which tokens take part in calls."""
        self._tokenizer = tokenizer
        self.vocab_size, self.eos_ids = tokenizer.vocab_size, tokenizer.eos_ids
        self.hidden_ids = tokenizer.hidden_ids.difference(marker_ids)

    @property
    def control_ids(self) -> frozenset[int]:
        """See ``Vocabulary``."""
        return self._tokenizer.control_ids

    def token_bytes(self, id_: int) -> bytes:
        """See ``Vocabulary``."""
        return b"" if id_ in self.hidden_ids else self._tokenizer.spelled_bytes(id_)


def chat_settings(
    template: ChatTemplate,
    tools: object,
    tool_choice: object,
    template_values: object,
    *,
    several: bool = True,
) -> ChatSettings:
    """Checks what a chat is told beside its messages.

    Args:
        template: of the model.
        tools: see ``LLM.chat``.
        tool_choice: the same.
        template_values: the same.
        several: whether a reply that has to call may call more than one function.

    Raises:
        InputError: tools are no descriptions of functions, the choice is none, or the template
            does not read a value.
    """
    values = {} if template_values is None else check_switches(template_values)
    if values:
        check_readable(template, values)
    name = _chosen(tool_choice)
    functions = None
    if tools is not None:
        from edgerun.model.chat.tools.functions import Functions  # for few

        functions = Functions(tools)
    if not functions or not functions.schemas:
        if tool_choice not in (AUTO, NONE):
            raise InputError(f"tool_choice is {shown(tool_choice)}, and there are no tools to call")
        return ChatSettings(values=values)
    if tool_choice == NONE:
        return ChatSettings(values=values)
    if name and name not in functions.schemas:
        names = tuple(functions.schemas)
        raise InputError(
            f"tool_choice asks for {name!r}, which is none of the tools{suggestion(name, names)}"
        )
    forced = (name,) if name else tuple(functions.schemas) if tool_choice == REQUIRED else ()
    return ChatSettings(functions, forced, several=several and not name, values=values)


def params_with_calls(
    params: SamplingParams, settings: ChatSettings, calling: Calling, vocabulary: CallVocabulary
) -> SamplingParams:
    """How the tokens of a reply are chosen that may call functions, or must.

    Args:
        params: as they were asked for. A schema of the reply is one of an answer: a reply that must
            call has none, and one that may either calls as the functions' schemas say or answers.
        settings: which functions there are.
        calling: how the model calls them.
        vocabulary: of the model.

    Raises:
        SamplingError: the whole reply is to follow another form, or calls cannot be forced.
        MissingDependencyError: llguidance is not installed, and calls have a grammar.
    """
    if settings.functions is None or not (settings.forced or params.shapes_text):
        return params
    from edgerun.engine.constraints.either import EitherForm  # for few
    from edgerun.engine.sampling.structure import Structure

    others = [each for each in params.processors if not each.shapes_text]
    answer = _answer(params) if params.shapes_text else None
    asked = CALL_FORCED if settings.forced else CALL_OR_ANSWER
    _check_shape(calling, asked)
    schemas = settings.functions.schemas
    schemas = {name: schemas[name] for name in settings.forced or schemas}
    structure: Structure | EitherForm
    try:
        several = settings.several and calling.several
        structure = Structure(grammar=_grammar(schemas, calling, several=several))
        if answer is not None and not settings.forced:
            structure = EitherForm("json_schema or a call", (structure, answer))
        structure = structure.with_vocabulary(vocabulary)
    except SamplingError as error:
        raise _why_not(asked, schemas, error) from error
    return params.replaced(processors=(structure, *others))


def _answer(params: SamplingParams) -> Structure:
    """What says how answers look.

    Raises:
        SamplingError: the reply is to have a form that is no schema's.
    """
    from edgerun.engine.sampling.structure import Structure

    form, *others = (each for each in params.processors if each.shapes_text and each.is_active)
    if isinstance(form, Structure) and form.json_schema is not None and not others:
        return form
    raise SamplingError(
        "tools are given, and a form of the whole reply as well, in which nothing could be called: "
        "leave out tools, or say by json_schema, not by regex or grammar, what answers look like"
    )


def _check_shape(calling: Calling, asked: str) -> None:
    """Makes sure that calls can have a grammar."""
    from edgerun.engine.constraints.trial import check_installed

    check_installed("tool_choice" if asked == CALL_FORCED else "json_schema beside tools")
    if calling.form is None or calling.form.shape is None:
        raise SamplingError(
            f"{asked}, and there is no grammar yet for the form in which this model writes "
            f"arguments ({calling.name}): {NO_GRAMMAR[asked]}"
        )


def _grammar(schemas: Mapping[str, Mapping[str, Any]], calling: Calling, *, several: bool) -> str:
    """The grammar of a reply that calls one of some functions."""
    from edgerun.engine.constraints.numbers import with_exact_numbers
    from edgerun.engine.constraints.spelling import with_spelling
    from edgerun.model.chat.tools.grammar import grammar_of_calls

    assert calling.form is not None and calling.form.shape is not None
    exact = {name: with_spelling(with_exact_numbers(schema)) for name, schema in schemas.items()}
    return grammar_of_calls(calling.form.shape, exact, calling.markers, several=several)


def _why_not(
    asked: str, schemas: Mapping[str, Mapping[str, Any]], whole: SamplingError
) -> SamplingError:
    """Names the function whose calls can have no grammar, if it is only one's fault.

    Of many functions it may be one that nobody looked at: a request has no minutes for its refusal.
    """
    from edgerun.engine.constraints.trial import grammar_of
    from edgerun.model.chat.tools.grammar import argument_schema

    end = time.monotonic() + WHY_NOT_S
    for name, schema in schemas.items():
        if time.monotonic() > end:
            break
        try:
            grammar_of("json_schema", json.dumps(argument_schema(schema)))
        except SamplingError as error:
            return SamplingError(f"{asked}, and arguments of {name!r} can have no grammar: {error}")
    return SamplingError(f"{asked}, and calls of {_listed(schemas)} can have no grammar: {whole}")


def _listed(names: Mapping[str, object]) -> str:
    """Some names, or the first of many."""
    rest = len(names) - MOST_LISTED
    return ", ".join(list(names)[:MOST_LISTED]) + (f" and {rest} others" if rest > 0 else "")


def _chosen(tool_choice: object) -> str:
    """The name of the function that is to be called; empty for none in particular.

    Raises:
        InputError: the choice is of another form.
    """
    if isinstance(tool_choice, str) and tool_choice in CHOICES:
        return ""
    is_function = isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function"
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not is_function or not isinstance(name, str) or not name:
        raise InputError(
            f"tool_choice is {shown(tool_choice)}; expected 'auto', 'none', 'required' or "
            '{"type": "function", "function": {"name": "..."}}'
        )
    return name
