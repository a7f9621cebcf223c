"""Replies of one form or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from edgerun.engine.chooser.processor import Filter, TextProcessor
from edgerun.engine.chooser.vocabulary import Vocabulary
from edgerun.engine.sampling.structure import Structure
from edgerun.errors import SamplingError


@dataclass(frozen=True)
class EitherForm(TextProcessor):
    """Leaves the tokens with which a reply goes on as one of several forms asks.

    Forms are followed side by side. One grammar of them all would not do: where a text of one
    begins with what is whole in another, llguidance goes on with the longer and forgets the other.

    Attributes:
        name: of what asks for them, in errors.
        forms: of which a reply has one, each active.
    """

    order: ClassVar[int] = Structure.order
    callers_only: ClassVar[bool] = True
    shapes_text: ClassVar[bool] = True
    name: str
    forms: tuple[Structure, ...]

    @property
    def is_active(self) -> bool:
        return True

    def with_vocabulary(self, vocabulary: Vocabulary) -> EitherForm:
        """Returns the same for the tokens of a model.

        Raises:
            SamplingError: a grammar is not understood, or takes too much.
        """
        forms = tuple(form.with_vocabulary(vocabulary) for form in self.forms)
        return replace(self, forms=forms, vocabulary=vocabulary)

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        """Begins a reply.

        Raises:
            SamplingError: nothing says what tokens spell, or no text of theirs is allowed.
        """
        from edgerun.engine.constraints.matcher import GrammarFilter

        if self.vocabulary is None:
            raise SamplingError(f"{self.name}: nothing says what tokens spell")
        return GrammarFilter(self.name, [form.compiled(vocab_size) for form in self.forms])
