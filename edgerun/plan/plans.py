"""What a plan says: segments of nodes by back-end, routes, and why others were turned down."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from edgerun.backends.base import FEW_ROWS, Phase
from edgerun.graph.ir import Graph

if TYPE_CHECKING:
    from edgerun.plan.requests.breakeven import Split

NEVER = sys.maxsize  # rows of a route that nothing takes
PROMPTS = "prompts"  # how a plan calls rows of prompts whose logits nobody wants


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes on one back-end.

    Attributes:
        backend: name of the back-end.
        graph: the nodes, with what goes in and out.
        seconds: estimated time.
        rows: that it is for, typical of the phase.
    """

    backend: str
    graph: Graph
    seconds: float
    rows: int = 1

    def count_ops(self) -> dict[str, int]:
        """Nodes by op."""
        return dict(Counter(node.op for node in self.graph.nodes))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a back-end does not take part in a phase.

    Attributes:
        backend: its name.
        reason: why.
        remedy: what has it take part all the same; "" where nothing does.
    """

    backend: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        """Both, as part of a sentence."""
        return "; ".join(filter(None, (self.reason, self.remedy)))


@dataclass(frozen=True, slots=True)
class Route:
    """Where rows of prompts go whose logits nobody wants: they leave keys and values alone.

    Attributes:
        segments: in order; nothing comes out of the last.
        refusals: back-ends that take no part.
        from_rows: of a sequence in a batch; fewer go where all others go.
    """

    segments: tuple[Segment, ...]
    refusals: tuple[Refusal, ...] = ()
    from_rows: int = FEW_ROWS + 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments of every phase, and what was turned down.

    Attributes:
        segments: in order, by phase; together they run every batch.
        refusals: back-ends that take no part in a phase.
        bases: what the estimates of a back-end stand on, where it says so.
        prompts: where most rows of prompts go instead.
        splits: what would be, or is, if prompts went to another device than replies; the one that
            is comes first.
        is_asked: a user named its back-ends; else one that fails is no error.
        trial: where nothing goes elsewhere, finds a device that might be better for prompts than
            is believed, or None.
    """

    segments: Mapping[Phase, tuple[Segment, ...]]
    refusals: Mapping[Phase, tuple[Refusal, ...]]
    bases: Mapping[str, str] = field(default_factory=dict)
    prompts: Route | None = None
    splits: tuple[Split, ...] = ()
    is_asked: bool = True
    trial: Callable[[], tuple[Split, Route] | None] | None = field(default=None, compare=False)

    def backends(self) -> set[str]:
        """Names of those that run anything."""
        placed = [*self.segments.values(), self.prompts.segments if self.prompts else ()]
        return {segment.backend for segments in placed for segment in segments}

    def refusal_of(self, backend: str) -> Refusal | None:
        """Why a back-end runs nothing: what can be remedied first, and of replies first."""
        routes = self.prompts.refusals if self.prompts else ()
        every = chain(routes, *self.refusals.values())
        own = [each for each in every if each.backend == backend]
        # The last phase is that of replies, which are most of the time.
        return max(own[::-1], key=lambda each: bool(each.remedy), default=None)

    def verdict(self) -> str:
        """Where prompts and replies go and why, in a sentence; empty where nothing was weighed.

        It begins with ``"simulated"`` if what it stands on is.
        """
        if not self.splits:
            return ""
        split = self.splits[0]
        there, here = (" and ".join(side.names) for side in (split.there, split.here))
        tokens = split.longest
        figures = (
            f"a prompt of {tokens} tokens takes {split.seconds_there(tokens) * 1e3:.4g} ms with "
            f"{there}, {split.seconds_here(tokens) * 1e3:.4g} ms with {here} alone"
        )
        simulated = "simulated: " if "simulated" in split.basis else ""
        if self.prompts is None:
            return f"{simulated}{here} alone: {figures}"
        start = f"{simulated}{there} from {self.prompts.from_rows + 1} prompt tokens on"
        return f"{start}; below, and for every reply, {here}: {figures}"

    def explain(self) -> list[Placement]:
        """What runs where, phase by phase, each followed by what was turned down."""
        rows: list[Placement] = []
        if self.prompts is not None:
            rows += self._lines(PROMPTS, self.prompts.segments, self.prompts.refusals)
        for phase, segments in self.segments.items():
            rows += self._lines(phase.value, segments, self.refusals[phase])
        return rows

    def _lines(
        self, phase: str, segments: Sequence[Segment], refusals: Sequence[Refusal]
    ) -> list[Placement]:
        chosen = [
            Placement(
                phase,
                segment.backend,
                True,
                segment.seconds,
                segment.rows,
                segment.count_ops(),
                basis=self.bases.get(segment.backend, ""),
            )
            for segment in segments
        ]
        refused = [
            Placement(phase, refusal.backend, False, reason=refusal.reason) for refusal in refusals
        ]
        return chosen + refused


@dataclass(frozen=True, slots=True)
class Placement:
    """One line of an explained plan.

    Attributes:
        phase: a ``Phase``, or ``PROMPTS``.
        backend: its name.
        chosen: whether it runs there.
        seconds: estimate of a call.
        rows: that it is for.
        ops: nodes of the segment by op.
        reason: why it was turned down.
        basis: what the estimate stands on.
    """

    phase: str
    backend: str
    chosen: bool
    seconds: float | None = None
    rows: int | None = None
    ops: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    basis: str = ""
