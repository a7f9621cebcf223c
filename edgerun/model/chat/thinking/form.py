"""The contract of a form in which models mark what they think.

To add a form, put it into ``FORMS`` (``forms.py``). A model has the form that its chat template or
its control tokens name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from edgerun.model.text.controls import ControlTokens

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.reader import ThoughtReader
    from edgerun.model.chat.tools.incoming import Reading
    from edgerun.model.text.tokenizer import Tokenizer


class AnswerStart(NamedTuple):
    """Where an answer begins.

    Attributes:
        closing: the id behind which it begins.
        leading: ids that lead there from the midst of a thought; ``closing`` is the last.
        heading: ids behind the last of which ``closing`` counts; none where it always does.
        opening: the id that a thought begins with, where a reply may begin with its answer; None
            where it does not.
    """

    closing: int
    leading: tuple[int, ...]
    heading: tuple[int, ...] = ()
    opening: int | None = None

    def is_reached(self, ids: Sequence[int]) -> bool:
        """Whether an answer begins behind these ids."""
        if ids[-1] != self.closing:
            return False
        if not self.heading:
            return True
        begin = next((at for at in range(len(ids) - 1, -1, -1) if ids[at] == self.heading[0]), None)
        return begin is not None and tuple(ids[begin:][: len(self.heading)]) == self.heading


class ThoughtForm(ABC):
    """How models mark what they think.

    Attributes:
        opening: what a thought begins with.
        closing: what ends it.
    """

    opening: str
    closing: str

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
