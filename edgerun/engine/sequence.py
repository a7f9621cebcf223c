"""A sequence: a prompt and what follows it, from the moment it is asked for until it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.beginnings import Beginning
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.logprobs import TokenLogprob, token_logprob
from edgerun.engine.stats import Stats
from edgerun.state import Adjust, TakeLogits

if TYPE_CHECKING:
    from edgerun.engine.drafting.drafting import Guesses

FinishReason = Literal["stop", "length", "context", "memory"]
AHEAD = 8  # ids that a reply may have which its reader has not taken


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply.

    Attributes:
        id: the token.
        finish_reason: why it is the last one, or None: ``"stop"`` for a stop id (which belongs to
            no text), ``"length"`` for max_tokens, ``"context"`` for the end of the context.
        logprob: how likely the model held it, if that was asked for.
    """

    id: int
    finish_reason: FinishReason | None = None
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends a reply.

    Attributes:
        length: most ids, those of the prompt among them.
        reason: what is said of a reply of that length.
        stop_ids: ids that are the last of a reply.
    """

    length: int
    reason: FinishReason = "context"
    stop_ids: frozenset[int] = frozenset()


class Lease:
    """Has a slot of the store, until it is closed or forgotten."""

    __slots__ = ("__weakref__", "is_open", "slot")

    def __init__(self) -> None:
        """Made before the slot is taken, which is then this object's."""
        self.slot = -1
        self.is_open = True


class Sequence:
    """A prompt and its reply; nobody else has a list of its ids.

    Its engine computes it; one reader, in any thread, takes what came. Only ``lease``, ``cached``
    and ``ids`` change when it is computed, each at once: a call that is interrupted between two of
    these changes is repeated. What is told of an id is there before the id, and written again then.

    Attributes:
        ids: the prompt and what was chosen, a stop id included.
        prompt_tokens: how many of them are the prompt.
        ending: what ends the reply.
        stats: timings.
        lease: its slot in the store; None while it waits.
        cached: ids whose states are in the slot.
        is_added: whether it is or was its engine's.
        cancelled: whether nobody wants more of it.
        is_finished: whether no id follows.
        is_complete: whether that is because nothing may follow its text, of which the last id is
            part.
        is_starved: whether that is because memory was too small, though nothing else ran.
        error: what ended it, or None.
        previous: an ended sequence, whose slot this one goes on with if it is still there.
        is_retained: whether another one shall go on with its slot.
        drafted: ids that may follow, which the next call computes as well.
        guesses: where they come from.
        logprobs: how many of the likeliest tokens to name beside each; None to look at none.
        beginning: the pages that its ids fill.
    """

    def __init__(
        self,
        prompt: list[int],
        ending: Ending,
        chooser: Chooser | None,
        stats: Stats | None = None,
        logprobs: int | None = None,
    ) -> None:
        """Begins behind a prompt of at least one id."""
        self.ids = prompt
        self.beginning = Beginning(prompt)
        self.prompt_tokens = len(prompt)
        self.ending = ending
        self.stats = stats or Stats()
        self.lease: Lease | None = None
        self.cached = 0
        self.is_added = False
        self.cancelled = False
        self.is_finished = False
        self.is_complete = False
        self.is_starved = False
        self.error: Exception | None = None
        self.previous: Sequence | None = None
        self.is_retained = False
        self.drafted: tuple[int, ...] = ()
        self.guesses: Guesses | None = None
        self.logprobs = logprobs
        self._untaken: dict[int, TokenLogprob] = {}  # by position, as far as nobody took them
        self._chooser = chooser
        self._taken = len(prompt)

    @property
    def pending(self) -> int:
        """Ids that have no states yet: any number in a prompt, one in most replies."""
        return len(self.ids) - self.cached

    @property
    def is_reply(self) -> bool:
        """Whether its prompt is computed, and what was chosen follows."""
        return self.cached >= self.prompt_tokens

    @property
    def logits_from(self) -> int:
        """Position of the first id whose logits are wanted."""
        return len(self.ids) - 1

    @property
    def wants_all(self) -> bool:
        """Whether the logits of all its ids are wanted, and not the last one's alone."""
        return False

    @property
    def take_logits(self) -> TakeLogits | None:
        """Gets its logits in the middle of a call, however many they are; see ``Batch``."""
        return None

    @property
    def takes_largest(self) -> bool:
        """Whether of a row's logits nothing but the largest is looked at, once adjusted."""
        chooser = self._chooser
        return chooser is not None and chooser.takes_largest and self.logprobs is None

    @property
    def adjust(self) -> Adjust | None:
        """Says what is done to logits behind all of its ids; see ``Batch``."""
        return None if self._chooser is None else self._chooser.adjust

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no id follows; None if one does, or if it was cancelled or failed."""
        if self.is_starved:
            return "memory"
        return "stop" if self.is_complete else self._reason(len(self.ids))

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it will be computed any more."""
        return self.is_finished or self.cancelled or self.error is not None

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be computed now: its reader is not far behind."""
        return len(self.ids) - self._taken < AHEAD and not self.is_ended

    @property
    def is_ready(self) -> bool:
        """Whether its reader need not wait."""
        return (  # ``is_ended`` written out: this is asked of every sequence at every step
            self._taken < len(self.ids)
            or self.is_finished
            or self.cancelled
            or self.error is not None
        )

    def receive(self, logits: NDArray[np.float32]) -> int:
        """Chooses an id by the logits behind the last one, and goes on where it was drafted.

        Each id is drawn with the random number of its position, as if it were alone in a call, so
        that a draft changes nothing but the speed. A token that was drafted is taken with its
        probability, the most that is possible for a draft that comes without probabilities of its
        own (Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
        theorem 3.5 with q = 1).

        Args:
            logits: behind the last id and behind each that was drafted, ``[1 + drafted, vocab]``.

        Returns:
            How many drafted ids were right.
        """
        right, drafted, self.drafted = 0, self.drafted, ()
        self.stats.drafted_tokens += len(drafted)
        for row, draft in zip(logits, (*drafted, None), strict=True):
            self._choose(row)
            if self.is_finished or self.ids[-1] != draft:
                break
            right += 1
            self.stats.accepted_tokens += 1  # at once: the next may be an error, or Ctrl-C
        return right

    def _choose(self, logits: NDArray[np.float32]) -> None:
        assert self._chooser is not None
        id_ = self._chooser.draw(logits)
        if self.logprobs is not None:
            self._untaken[len(self.ids)] = token_logprob(logits, id_, self.logprobs)
        if id_ not in self.ending.stop_ids:
            self._chooser.accept(id_)
            self.stats.completion_tokens += 1
        self.is_complete = self._chooser.is_complete  # before a reader sees the id
        self.stats.mark(first=len(self.ids) == self.prompt_tokens)
        self.ids.append(id_)
        self.is_finished = self.finish_reason is not None

    def starve(self) -> None:
        """Ends it for want of memory."""
        self.is_starved = self.is_finished = True

    def take(self) -> Token | None:
        """Returns the next token; None if it is not there yet, or none will be."""
        if self._taken == len(self.ids):
            return None
        id_, logprob = self.ids[self._taken], self._untaken.pop(self._taken, None)
        self._taken += 1
        return Token(id_, None if self.is_complete else self._reason(self._taken), logprob)

    def recover(self, cached: int) -> None:
        """Brings all in line with the ids after a call that was interrupted."""
        self.cached, self.drafted = cached, ()
        if self._chooser is not None and self.error is None:  # which the chooser may repeat
            self._chooser.recover(len(self.ids))
            self.is_complete = self._chooser.is_complete
        self.is_finished = self.finish_reason is not None

    def _reason(self, length: int) -> FinishReason | None:
        if length > self.prompt_tokens and self.ids[length - 1] in self.ending.stop_ids:
            return "stop"
        return self.ending.reason if length >= self.ending.length else None


class Scoring(Sequence):
    """A text of which the logits of every position are wanted, and no reply."""

    def __init__(self, ids: list[int], take: TakeLogits | None = None) -> None:
        """Takes at least one id.

        Args:
            ids: of the text.
            take: gets the logits from whoever computes them; else they wait for a reader.
        """
        super().__init__(ids, Ending(len(ids) + 1), None)
        self._take = take
        self._scored = 0
        self._block: NDArray[np.float32] | None = None

    @property
    def logits_from(self) -> int:
        """Position of the first id whose logits nobody has yet."""
        return self._scored

    @property
    def wants_all(self) -> bool:
        """Always."""
        return True

    @property
    def take_logits(self) -> TakeLogits | None:
        """What counts them, too; None if a reader takes them."""
        return None if self._take is None else self._hand_over

    @property
    def finish_reason(self) -> FinishReason | None:
        """``"length"`` when the logits of all ids were taken."""
        return "length" if self._scored == len(self.ids) else super().finish_reason

    @property
    def is_wanted(self) -> bool:
        """Whether its reader has all logits that came."""
        return self._block is None and not self.is_ended

    @property
    def is_ready(self) -> bool:
        """Whether its reader need not wait."""
        return self._block is not None or self.is_ended

    def receive(self, logits: NDArray[np.float32]) -> int:
        """Keeps a copy of logits ``[rows, vocab]`` for the reader, if there is one."""
        if self._take is None:
            self._block = logits.copy()
        else:
            self._hand_over(logits)
        return 0

    def take_block(self) -> NDArray[np.float32] | None:
        """Returns logits of the next rows ``[rows, vocab]``; None if there are none yet.

        For the thread that holds the store's lock.
        """
        block, self._block = self._block, None
        if block is not None:
            self._count(block)
        return block

    def _hand_over(self, logits: NDArray[np.float32]) -> None:
        assert self._take is not None
        self._take(logits)
        self._count(logits)

    def _count(self, logits: NDArray[np.float32]) -> None:
        self._scored += len(logits)
        self.is_finished = self._scored == len(self.ids)


def shared_prefix(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix of two lists of ids."""
    return next(compress(count(), map(ne, left, right)), min(len(left), len(right)))
