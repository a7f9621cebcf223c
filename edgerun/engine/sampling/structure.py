"""Structured output: replies that follow a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from edgerun.engine.chooser.option import option
from edgerun.engine.chooser.processor import Filter, TextProcessor
from edgerun.engine.chooser.vocabulary import Vocabulary
from edgerun.engine.constraints.kinds import Grammar, Regex, Schema
from edgerun.engine.constraints.trial import check_installed, grammar_of
from edgerun.errors import SamplingError

if TYPE_CHECKING:
    from edgerun.engine.constraints.matcher import Compiled


@dataclass(frozen=True)
class Structure(TextProcessor):
    """Leaves the tokens with which a reply goes on as was asked; at most one option is given.

    What may follow is computed by llguidance (github.com/guidance-ai/llguidance): an Earley parser
    above a lexer of derivatives of regular expressions, which walk the tree of the vocabulary.
    """

    order: ClassVar[int] = 5
    callers_only: ClassVar[bool] = True
    shapes_text: ClassVar[bool] = True
    json_schema: Mapping[str, Any] | bool | str | None = option(
        None, Schema(), "The reply is JSON that this schema describes, without spaces between it."
    )
    regex: str | None = option(None, Regex(), "The whole reply matches this regular expression.")
    grammar: str | None = option(
        None, Grammar(), "The reply follows this grammar: llguidance's form of Lark, or GBNF."
    )

    def __post_init__(self) -> None:
        """Checks every value, and that there is no second one.

        Raises:
            SamplingError: there is, or a value is not understood, or takes too much.
            MissingDependencyError: llguidance is not installed.
        """
        super().__post_init__()
        given = self._given()
        if len(given) > 1:
            raise SamplingError(f"{given[0][0]} and {given[1][0]} are both given: leave one out")
        for name, text in given:
            check_installed(name)
            if name != "grammar":  # which may name control tokens of a model
                grammar_of(name, text)

    def with_vocabulary(self, vocabulary: Vocabulary) -> Structure:
        """Returns the same for the tokens of a model.

        Raises:
            SamplingError: the grammar is not understood, or takes too much.
        """
        for name, text in self._given():
            _grammar(name, text, vocabulary)
        return super().with_vocabulary(vocabulary)

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        """Begins a reply.

        Raises:
            SamplingError: nothing says what tokens spell, or no text of theirs is allowed.
        """
        from edgerun.engine.constraints.matcher import GrammarFilter

        compiled, ((name, _),) = self.compiled(vocab_size), self._given()
        return GrammarFilter(name, [compiled])

    def compiled(self, vocab_size: int) -> Compiled:
        """What was asked as a grammar for the tokens of a model, of so many ids.

        Raises:
            SamplingError: nothing says what tokens spell, or the grammar is not understood.
        """
        from edgerun.engine.constraints.matcher import compiled

        ((name, text),) = self._given()
        if self.vocabulary is None:
            raise SamplingError(
                f"{name} is about texts, and nothing says what tokens spell: use "
                "SamplingParams.with_vocabulary"
            )
        if vocab_size not in self._compiled:
            grammar = _grammar(name, text, self.vocabulary)
            self._compiled[vocab_size] = compiled(grammar, self.vocabulary, vocab_size)
        return self._compiled[vocab_size]

    @cached_property
    def _compiled(self) -> dict[int, Compiled]:
        """By the width of logits: compiled once for all replies that were asked for together."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Goes to other processes without what is compiled, too."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_compiled"}

    def _given(self) -> list[tuple[str, str]]:
        values = [(entry.name, getattr(self, entry.name)) for entry in self.options()]
        return [(name, value) for name, value in values if value is not None]


def _grammar(name: str, text: str, vocabulary: Vocabulary) -> str:
    from edgerun.engine.constraints.matcher import named_controls

    if name != "grammar":
        return grammar_of(name, text)
    return grammar_of(name, text, tuple(named_controls(vocabulary).items()), vocabulary.vocab_size)


PROCESSOR = Structure
