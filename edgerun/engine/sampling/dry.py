"""DRY, "don't repeat yourself": makes it unlikely that something is said again, word for word."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from edgerun.engine.chooser.option import Number, Whole, option
from edgerun.engine.chooser.processor import Filter, TextProcessor
from edgerun.engine.chooser.repeating.breakers import START, Breakers
from edgerun.errors import SamplingError
from edgerun.values import shown

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.repeating.matches import Matches
    from edgerun.engine.chooser.repeating.repeats import Repeats
    from edgerun.state import Adjustment

MAX_BREAKERS = 64
MAX_CHARACTERS = 256
MOST = 1e4  # outweighs any logit, and leaves float32 enough digits to order those with this penalty
MAX_TOKENS = 2**31 - 1
MANY = 8192  # ids of a prompt that take longer to read for ``Repeats`` than they save later


@dataclass(frozen=True)
class BreakerTexts:
    """A few short texts, or one; typed as a list in JSON."""

    accepts, flag, metavar = "str | Sequence[str]", str, "JSON"
    values = 'a list of texts, as in ["\\n", ":"]'

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise SamplingError(f"{name} is {shown(value)}; expected {self.values}")
        if len(texts) > MAX_BREAKERS:
            raise SamplingError(f"{name} has {len(texts)} texts; expected at most {MAX_BREAKERS}")
        for text in texts:
            if not 0 < len(text) <= MAX_CHARACTERS or not _is_utf8(text):
                raise SamplingError(
                    f"{name} holds {shown(text)}; expected texts of 1 to {MAX_CHARACTERS} "
                    "characters, none of them half of a pair of surrogates"
                )
        return tuple(texts)

    def parse(self, text: str) -> Any:
        try:
            texts = json.loads(text)
        except RecursionError:
            raise ValueError(text) from None
        if not isinstance(texts, list):
            raise ValueError(text)
        return texts

    def write(self, value: Sequence[str]) -> str:
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Dry(TextProcessor):
    """Subtracts from the logits of tokens that would go on with a repetition.

    Where the last n ids were followed by a token before, with n at least ``dry_allowed_length``,
    its logit loses ``dry_multiplier * dry_base ** (n - dry_allowed_length)``, n being the longest
    such run and the amount 10,000 at most. A run ends behind a breaker and behind a control token;
    a token in which a breaker ends loses nothing. The method and its names are those of p-e-w
    (text-generation-webui, pull request 5677), which llama.cpp has as well.
    """

    order: ClassVar[int] = 25
    dry_multiplier: float = option(
        0.0,
        Number(0, 100),
        """Above 0 discourages repeating runs of tokens of prompt and reply, the longer the more;
        0.8 is usual.""",
    )
    dry_base: float = option(
        1.75, Number(1, 100), "The penalty is multiplied by this with every further token of a run."
    )
    dry_allowed_length: int = option(
        2, Whole(1, MAX_TOKENS), "Runs of so many tokens may come again."
    )
    dry_penalty_last_n: int = option(
        -1, Whole(-1, MAX_TOKENS), "Tokens to look back at; -1 looks at all, 0 at none."
    )
    dry_sequence_breakers: Sequence[str] = option(
        ("\n", ":", '"', "*"), BreakerTexts(), "No run goes over one of these texts."
    )

    @property
    def is_active(self) -> bool:
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        """Reads the prompt.

        Raises:
            SamplingError: there are breakers and nothing that says what tokens spell.
        """
        if self.dry_sequence_breakers and self.vocabulary is None:
            raise SamplingError(
                "dry_sequence_breakers are texts, and nothing says what tokens spell: pass an "
                "empty list, or use SamplingParams.with_vocabulary"
            )
        return DryFilter(self, prompt)

    @cached_property
    def breakers(self) -> Breakers:
        """What finds the texts; the replies to one prompt have it in common."""
        return Breakers(tuple(self.dry_sequence_breakers), self.vocabulary)


class DryFilter:
    """The penalties of one sequence."""

    def __init__(self, dry: Dry, prompt: Sequence[int]) -> None:
        from edgerun.engine.chooser.repeating.matches import Matches
        from edgerun.engine.chooser.repeating.repeats import Repeats

        self._allowed = dry.dry_allowed_length
        self._multiplier, self._base = math.log(dry.dry_multiplier), math.log(dry.dry_base)
        self._longest = self._allowed
        if self._base > 0:
            self._longest += math.ceil((math.log(MOST) - self._multiplier) / self._base)
        self._amounts: dict[int, float] = {}
        self._window = dry.dry_penalty_last_n if dry.dry_penalty_last_n > 0 else MAX_TOKENS
        self._breakers = dry.breakers
        self._runs = [0]  # where they begin
        self._states = [START]  # of the breakers, behind none of the ids, the first, the second...
        ids = [int(id_) for id_ in prompt]
        for id_ in ids:
            self._read(id_)
        kind = Repeats if len(ids) < MANY else Matches
        self._repeats: Repeats | Matches = kind(self._allowed, self._window, ids)

    def accept(self, id_: int) -> None:
        self._read(id_)
        self._repeats.append(id_)

    def _read(self, id_: int) -> None:
        """Learns whether an id breaks what is repeated."""
        state, breaks = self._breakers.step(self._states[-1], id_)
        if breaks:
            self._runs.append(len(self._states))
        self._states.append(state)

    def undo(self, id_: int) -> None:
        self._states.pop()
        if self._runs[-1] == len(self._states):
            self._runs.pop()
        self._repeats.pop()

    def apply(self, candidates: Candidates) -> Candidates:
        adjustment = self.adjustment()
        if adjustment is not None:
            places, inside = candidates.places(adjustment.ids)
            candidates.logits[places] -= adjustment.amounts[inside]
        return candidates

    def adjustment(self) -> Adjustment | None:
        """See ``AdjustingFilter``; None if nothing would be said again."""
        lengths = self._lengths(min(self._longest, len(self._repeats) - self._runs[-1]))
        if lengths:
            step, state = self._breakers.step, self._states[-1]
            lengths = {id_: n for id_, n in lengths.items() if not step(state, id_).breaks}
        if not lengths:
            return None
        import numpy as np

        from edgerun.state import Adjustment

        amounts = [self._amount(length) for length in lengths.values()]
        return Adjustment(
            np.array(list(lengths), np.int64),
            np.ones(len(lengths), np.float32),
            np.array(amounts, np.float32),
        )

    def _lengths(self, longest: int) -> dict[int, int]:
        """By id the longest match before it."""
        lengths = self._repeats.lengths(longest)
        if lengths is None:  # nor will it be said soon of the tokens that follow
            from edgerun.engine.chooser.repeating.matches import Matches
            from edgerun.engine.chooser.repeating.repeats import Repeats

            assert isinstance(self._repeats, Repeats)
            self._repeats = Matches(self._allowed, self._window, self._repeats.ids)
            lengths = self._repeats.lengths(longest)
        return lengths

    def _amount(self, length: int) -> float:
        """What a token loses that goes on with so many ids."""
        amount = self._amounts.get(length)
        if amount is None:
            exponent = self._multiplier + self._base * (length - self._allowed)
            amount = self._amounts[length] = min(MOST, math.exp(exponent))
        return amount


def _is_utf8(text: str) -> bool:
    """Whether a text holds no surrogates, which are no characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


PROCESSOR = Dry
