"""Which experts a device gets before anybody needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgerun.offload.cache import Step
from edgerun.offload.policies.base import Entry
from edgerun.offload.replay import check_layers, steps_of
from edgerun.offload.trace_file import NO_EXPERT, Trace

if TYPE_CHECKING:
    from edgerun.offload.sharing.layer import Layer
    from edgerun.offload.sharing.session import Session

RECENT_TOKENS = 64  # of a trace, from which the policy of the slots learns


@dataclass(frozen=True)
class History:
    """What the layers of a model were asked before, by the names of their nodes.

    Attributes:
        uses: of each expert of a layer, int64 ``[experts]``.
        recent: what the layer needed at last, token by token; the layer's number is the trace's.
    """

    uses: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    recent: Mapping[str, Sequence[Step]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, experts: Mapping[str, int]) -> History:
        """What a trace tells of a model.

        Args:
            trace: of the model.
            experts: of each of its layers, by name and in order.

        Raises:
            InputError: the trace has other layers.
        """
        check_layers(trace, experts)
        uses, recent = {}, {}
        for place, name in enumerate(experts):
            chosen = trace.choices["expert"][:, place]
            uses[name] = np.bincount(chosen[chosen != NO_EXPERT], minlength=trace.experts)
            recent[name] = steps_of(trace, place, RECENT_TOKENS)
        return cls(uses, recent)

    def steps(self, numbers: Mapping[str, int]) -> list[Step]:
        """What was needed at last, with the numbers that layers have now."""
        layers = [
            [replace(step, layer=number) for step in self.recent.get(name, ())]
            for name, number in numbers.items()
        ]
        return list(chain.from_iterable(layers))


def fill(
    session: Session,
    layers: Mapping[str, Layer],
    history: History,
    then: Callable[[float], None],
) -> None:
    """Queues the uploads of the experts that are likeliest to be needed.

    Args:
        session: of the device.
        layers: that are shared, by the names of their nodes.
        history: what is known of them.
        then: called with the seconds of each upload.
    """
    numbers = {name: layer.number for name, layer in layers.items()}
    counts = {name: layer.experts for name, layer in layers.items()}
    by_number = {layer.number: layer.slots for layer in layers.values()}
    session.fill(
        likeliest(counts, numbers, history),
        history.steps(numbers),
        lambda entry: by_number[entry[0]][entry[1]],
        then,
    )


def likeliest(
    experts: Mapping[str, int], numbers: Mapping[str, int], history: History
) -> list[Entry]:
    """All experts of some layers, those first that are likely to be needed most often.

    Those that were used as often, as all are of which nothing is known, follow one another layer by
    layer, so that every layer gets about as many.

    Args:
        experts: of each layer, how many, by its name.
        numbers: of the layers.
        history: what is known of them.
    """
    ranked: list[tuple[int, int, int, int]] = []
    for name, count in experts.items():
        uses = history.uses.get(name, np.zeros(count, np.int64))[:count]
        order = np.argsort(-uses, kind="stable").tolist()
        ranked += [
            (-int(uses[expert]), place, numbers[name], expert) for place, expert in enumerate(order)
        ]
    return [(number, expert) for *_, number, expert in sorted(ranked)]
