"""The contract of a form in which models mark what they think.

To add a form, put it into ``FORMS`` (``forms.py``). A model has the form that its chat template or
its control tokens name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from edgerun.model.text.controls import ControlTokens

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.reader import ThoughtReader
    from edgerun.model.chat.tools.incoming import Reading
    from edgerun.model.text.tokenizer import Tokenizer


class Path(NamedTuple):
    """Ids that lead to a thought, or to the answer.

    Attributes:
        ids: in their order.
        answers: whether the answer begins behind them.
    """

    ids: tuple[int, ...]
    answers: bool


class AnswerStart(NamedTuple):
    """How the ids of a reply come to the answer.

    Attributes:
        ways: by one of which a thought is left; the first ids of all are the same.
        beginnings: by one of which a reply begins that does not begin with its answer.
        begun: the reply goes on with a thought, and has no beginning.
        may_answer: whether a reply may begin with its answer at once.
        blanks: ids of blanks, which may stand before a beginning.
    """

    ways: tuple[Path, ...]
    beginnings: tuple[Path, ...] = ()
    begun: bool = False
    may_answer: bool = False
    blanks: frozenset[int] = frozenset()

    @property
    def ids(self) -> frozenset[int]:
        """All that are part of a way."""
        paths = (*self.ways, *self.beginnings)
        return frozenset(id_ for path in paths for id_ in path.ids)


class ThoughtForm(ABC):
    """How models mark what they think.

    Attributes:
        opening: what a thought begins with.
        closing: what ends it.
        heads_answers: whether answers, too, have marks of their own before them.
    """

    opening: str
    closing: str
    heads_answers: ClassVar[bool] = False

    @property
    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """What may be control tokens of a model."""

    @abstractmethod
    def suited(self, source: str, controls: ControlTokens) -> ThoughtForm | None:
        """The form as a model has it.

        Args:
            source: of its chat template.
            controls: its control tokens.

        Returns:
            None where the model does not have it.
        """

    @abstractmethod
    def read(self, reply: ThoughtReader, *, begun: bool) -> Reading[None]:
        """Tells thoughts and answer apart, from the beginning of a reply to its end.

        Args:
            reply: has the text, and takes both.
            begun: the prompt ends in a thought, with which the reply goes on.
        """

    @abstractmethod
    def answer_start(self, tokenizer: Tokenizer, *, begun: bool) -> AnswerStart | None:
        """Where the answer begins among the ids of a reply.

        Args:
            tokenizer: of the model.
            begun: the prompt ends in a thought, with which the reply goes on.

        Returns:
            None if no ids tell: the marks are letters.
        """

    def is_named(self, source: str) -> bool:
        """Whether a chat template names its marks."""
        return self.opening in source or self.closing in source

    def has_begun(self, prompt: str) -> bool:
        """Whether a rendered prompt has begun a thought and not ended it."""
        return prompt.rstrip().endswith(self.opening.rstrip())
