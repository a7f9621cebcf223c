"""Repetition, presence and frequency penalties on tokens that were seen before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.counts import Counts
from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.processor import Filter, Processor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.chain import Chain
    from edgerun.state import Adjustment


@dataclass(frozen=True)
class Penalties(Processor):
    """Repetition counts prompt and reply (Keskar et al. 2019, "CTRL", section 4.1).

    Presence and frequency count the reply alone and are those of the OpenAI API:
    ``logit -= count * frequency_penalty + (count > 0) * presence_penalty``.
    """

    order: ClassVar[int] = 20
    repetition_penalty: float = option(
        1.0,
        Number(0, 100, above_low=True),
        """Above 1 discourages repetition: divides positive logits of tokens in prompt and reply,
        multiplies negative ones.""",
    )
    presence_penalty: float = option(
        0.0, Number(-2, 2), "Subtracted once from the logits of tokens in the reply."
    )
    frequency_penalty: float = option(
        0.0, Number(-2, 2), "Subtracted from the logits of tokens in the reply, once a time."
    )

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        """Counts the prompt."""
        return PenaltyFilter(self, prompt)


class PenaltyFilter:
    """The penalties of one sequence."""

    def __init__(self, penalties: Penalties, prompt: Sequence[int]) -> None:
        import numpy as np

        self._penalties = penalties
        self._seen, self._reply = Counts(prompt), Counts()
        # Never so tiny that it would overflow float32: this already outweighs any logit.
        self._repetition = np.float32(max(penalties.repetition_penalty, 1e-6))
        self._repeats = penalties.repetition_penalty != 1
        self._subtracts = bool(penalties.presence_penalty or penalties.frequency_penalty)

    def accept(self, id_: int) -> None:
        self._seen.add(id_)
        self._reply.add(id_)

    def undo(self, id_: int) -> None:
        self._seen.remove(id_)
        self._reply.remove(id_)

    def apply(self, candidates: Candidates) -> Candidates:
        import numpy as np

        logits, repetition = candidates.logits, self._repetition
        if self._repeats:
            places, _ = candidates.places(self._seen.ids)
            values = logits[places]
            logits[places] = np.where(values > 0, values / repetition, values * repetition)
        if self._subtracts:
            places, inside = candidates.places(self._reply.ids)
            logits[places] -= self._amounts()[inside]
        return candidates

    def join(self, chain: Chain) -> bool:
        """See ``JoiningFilter``."""
        return chain.penalties(
            self._seen if self._repeats else None,
            self._reply if self._subtracts else None,
            float(self._repetition),
            self._penalties.presence_penalty,
            self._penalties.frequency_penalty,
        )

    def adjustment(self) -> Adjustment:
        """See ``AdjustingFilter``; ids of the reply are among those that were seen."""
        import numpy as np

        from edgerun.state import Adjustment

        ids = np.sort(self._seen.ids)
        amounts = np.zeros(len(ids), np.float32)
        if self._subtracts:
            amounts[np.searchsorted(ids, self._reply.ids)] = self._amounts()
        return Adjustment(ids, np.full(len(ids), self._repetition, np.float32), amounts)

    def _amounts(self) -> NDArray[np.float32]:
        """What is subtracted from the logits of the reply's ids."""
        import numpy as np

        counts, penalties = self._reply.counts.astype(np.float64), self._penalties
        amounts = counts * penalties.frequency_penalty + penalties.presence_penalty
        return amounts.astype(np.float32)


PROCESSOR = Penalties
