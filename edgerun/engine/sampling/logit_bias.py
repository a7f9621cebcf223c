"""Logit bias: adds a number to the logits of single ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from edgerun.engine.chooser.option import Number, Whole, option
from edgerun.engine.chooser.processor import StatelessProcessor
from edgerun.errors import SamplingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.chain import Chain


MAX_BIASES = 4096


@dataclass(frozen=True)
class Biases:
    """Numbers by token id."""

    accepts, flag, metavar = "Mapping[int, float]", str, "ID=X,..."
    values = "numbers from -100 to 100 by token id, as in 13=-5,7=2.5"

    def check(self, name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping) or len(value) > MAX_BIASES:
            raise SamplingError(
                f"{name} must map token ids to numbers, at most {MAX_BIASES} of them"
            )
        ids, numbers = Whole(0, 2**31 - 1), Number(-100, 100)
        return {
            ids.check(f"{name} id", id_): numbers.check(f"{name} of id {id_}", bias)
            for id_, bias in value.items()
        }

    def parse(self, text: str) -> dict[int, float]:
        pairs = (part.split("=", 1) for part in text.split(","))
        return {int(id_): float(bias) for id_, bias in pairs}

    def write(self, value: Mapping[int, float]) -> str:
        return ",".join(f"{id_}={bias}" for id_, bias in value.items()) or "none"


@dataclass(frozen=True)
class LogitBias(StatelessProcessor):
    """Adds to logits; runs before any filter unless a caller says otherwise."""

    order: ClassVar[int] = 10
    logit_bias: Mapping[int, float] = option({}, Biases(), "Added to the logits of single tokens.")

    def begin(self, prompt: Sequence[int], vocab_size: int) -> LogitBias:
        """Makes sure that every id is in the vocabulary."""
        outside = [id_ for id_ in self.logit_bias if id_ >= vocab_size]
        if outside:
            raise SamplingError(
                f"logit_bias names id {outside[0]}; the vocabulary ends at {vocab_size - 1}"
            )
        return self

    def apply(self, candidates: Candidates) -> Candidates:
        ids, values = self._arrays
        places, inside = candidates.places(ids)
        candidates.logits[places] += values[inside]
        return candidates

    def join(self, chain: Chain) -> bool:
        """See ``JoiningFilter``."""
        return chain.biases(*self._arrays)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        import numpy as np

        ids, values = list(self.logit_bias), list(self.logit_bias.values())
        return np.array(ids, np.int64), np.array(values, np.float32)


PROCESSOR = LogitBias
