"""What a sampling processor is, and how one is found.

A processor is one file in ``edgerun/engine/sampling`` or in a package's
``edgerun_plugins/engine/sampling``, with a class that the file names as its ``PROCESSOR``;
docs/contributing.md has an example. Its fields become arguments of ``LLM.generate``, flags of
``edgerun run`` and rows of the table in docs/python.md. Help pages import these files and should
not wait for NumPy: a file that needs it imports it where it is used.

The places in the order are those of Hugging Face's ``generate``: logit bias 10, penalties 20,
temperature 30, top-k 40, top-p 50, min-p 60, typical-p 70; DRY, which it lacks, is at 25, where
llama.cpp has it, and what a reply must look like is at 5. Each filter sees the probabilities that
the ones before it left, renormalised.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from edgerun.discovery import entries
from edgerun.engine.chooser.option import Options

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.vocabulary import Vocabulary
    from edgerun.state import Adjustment

    Self = TypeVar("Self", bound="TextProcessor")

ROOM = "edgerun.engine.sampling"


class Filter(Protocol):
    """What a processor does in one sequence; it may remember the ids that were accepted."""

    def apply(self, candidates: Candidates) -> Candidates:
        """Returns what is left of the candidates; their logits may be changed in place."""

    def accept(self, id_: int) -> None:
        """Learns that a token was appended."""

    def undo(self, id_: int) -> None:
        """Learns that the last token, which is ``id_``, was taken back."""


@runtime_checkable
class AdjustingFilter(Filter, Protocol):
    """A filter that does to all candidates what an ``Adjustment`` says, and nothing else."""

    def adjustment(self) -> Adjustment | None:
        """What ``apply`` would do now; None for nothing."""


@runtime_checkable
class EndingFilter(Filter, Protocol):
    """A filter that knows where a text may end."""

    def end_with(self, stop_ids: Iterable[int]) -> None:
        """Learns which ids end a reply; they are never accepted."""

    def is_complete(self) -> bool:
        """Whether nothing may follow what was accepted."""


@dataclass(frozen=True)
class Processor(Options, ABC):
    """Base of processors: small frozen values, whose defaults change nothing.

    One that remembers what was said derives from this class. After ``undo`` its filter must be as
    it was. One that looks at candidates alone is a ``StatelessProcessor``.

    Attributes:
        order: place among the others, lowest first; no two have the same.
        keeps_likeliest: it never changes which of the candidates is the likeliest, so that greedy
            choice can leave it out where no other processor follows it.
        callers_only: what a model recommends for its options counts for nothing.
        shapes_text: it says what a reply looks like, so that a space at its start is not taken off.
    """

    order: ClassVar[int]
    keeps_likeliest: ClassVar[bool] = False
    callers_only: ClassVar[bool] = False
    shapes_text: ClassVar[bool] = False

    @property
    def is_active(self) -> bool:
        """Whether it does anything."""
        return any(getattr(self, entry.name) != entry.default for entry in self.options())

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is to be taken."""
        return False

    def with_vocabulary(self, vocabulary: Vocabulary) -> Processor:
        """Returns this one with the texts of tokens, if it has options that are texts."""
        return self

    @abstractmethod
    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        """Returns a filter for a sequence that begins with ``prompt``.

        Raises:
            SamplingError: a value does not suit a vocabulary of this size.
        """


@dataclass(frozen=True)
class TextProcessor(Processor):
    """Base of processors with options that are texts.

    Attributes:
        vocabulary: what tokens spell, once somebody said it.
    """

    vocabulary: Vocabulary | None = field(default=None, compare=False, repr=False, kw_only=True)

    def with_vocabulary(self: Self, vocabulary: Vocabulary) -> Self:
        return replace(self, vocabulary=vocabulary) if self.is_active else self

    def __getstate__(self) -> dict[str, Any]:
        """Goes to other processes without the vocabulary: the model there has its own."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**values, "vocabulary": None}

    def __copy__(self: Self) -> Self:
        return self  # with the vocabulary: a copy stays in this process

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        return self


class StatelessProcessor(Processor):
    """Base of processors that look at candidates alone; each is its own filter."""

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        return self

    @abstractmethod
    def apply(self, candidates: Candidates) -> Candidates:
        """See ``Filter``."""

    def accept(self, id_: int) -> None:
        pass

    def undo(self, id_: int) -> None:
        pass


@functools.cache
def processor_types() -> tuple[type[Processor], ...]:
    """Imports all files of processors; returns their classes in order.

    Raises:
        ValueError: two have the same place, or options of the same name.
    """
    types: list[type[Processor]] = list(entries(ROOM, "PROCESSOR").values())
    types.sort(key=lambda type_: type_.order)
    _check_distinct("order", [str(type_.order) for type_ in types])
    _check_distinct("option", [entry.name for type_ in types for entry in type_.options()])
    return tuple(types)


def _check_distinct(what: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"two sampling processors have the {what} {value}")


def processors_of(values: Mapping[str, Any]) -> tuple[Processor, ...]:
    """Returns a processor of every class, in order, with those of its options that are named.

    Raises:
        SamplingError: a value is outside its range.
    """
    return tuple(
        type_(
            **{entry.name: values[entry.name] for entry in type_.options() if entry.name in values}
        )
        for type_ in processor_types()
    )
