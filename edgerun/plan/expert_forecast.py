"""How fast a model will be whose experts do not all fit into memory, before it says a word.

Pure functions of what was measured: the disk, the processor, the sizes of the model, and how often
an expert will be in memory when it is needed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgerun.backends.figures import ExpertReads
from edgerun.machine.disk import NOMINAL_DISK, DiskProfile
from edgerun.plan.expert_memory import ExpertBudget, ExpertLayer

PROMPT_TOKENS = 512
LEAST_WAITED_S = 0.5  # for experts, before a disk is taken to be slower than it was measured
FAR_LESS = 3.0  # times slower
FORESEEN = 0.6  # of what a layer needs, before anything was: small trained mixtures had 0.60, 0.74
LEAST_GUESSED = 1000  # experts, before what was foreseen counts
FILL_PASSES = 2  # over an expert that was read, to put it in order: read there, written here


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds that a call takes with everything in memory.

    Attributes:
        rows: of the call.
        experts_s: in layers of experts.
        others_s: in all other layers.
        after_s: of these, in those after the last layer of experts: the disk rests meanwhile, for
            what the next token needs is not known before it is chosen.
    """

    rows: int
    experts_s: float
    others_s: float
    after_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the whole call."""
        return self.experts_s + self.others_s


@dataclass(frozen=True, slots=True)
class Handling:
    """What reading takes beside the disk, by the time line of a token (docs/experts.md).

    Attributes:
        asking_s: seconds from a layer's post until its first read begins.
        next_s: that the disk rests from one read to the next.
        processor_s: of processor time, for a read and for what decides on it.
    """

    asking_s: float = 0.4e-3
    next_s: float = 0.09e-3
    processor_s: float = 0.2e-3


HANDLING = Handling()


@dataclass(frozen=True, slots=True)
class LayerForecast:
    """What a token of a reply finds in a layer of experts, on average.

    Attributes:
        name: of the layer's node.
        experts: how many it has.
        resident: how many of them are in memory.
        hit_share: of those that a token needs, how many are in memory.
        missed_bytes: read from the disk for a token.
        read_s: seconds that the disk takes for this.
        seconds: that the layer takes.
    """

    name: str
    experts: int
    resident: float
    hit_share: float
    missed_bytes: float
    read_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PromptForecast:
    """What to expect of a prompt.

    Attributes:
        compute: with everything in memory.
        nbytes: read for it.
        seconds: that it takes.
    """

    compute: Compute
    nbytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ExpertForecast:
    """What to expect of a reply and of a prompt.

    Attributes:
        budget: of memory, and the disk.
        layers: of experts.
        hits_from: where the shares of hits come from.
        decode: one token, with everything in memory.
        prompts: the usual one first, then longer ones.
        foreseen: of what layers need, the share that is before they ask for it.
        is_foreseen_assumed: nothing was foreseen so far.
        calibrated_bytes_s: what the disk was measured to bring, if it brought far less since.
    """

    budget: ExpertBudget
    layers: tuple[LayerForecast, ...]
    hits_from: str
    decode: Compute
    prompts: tuple[PromptForecast, ...]
    foreseen: float
    is_foreseen_assumed: bool
    calibrated_bytes_s: float | None = None

    @property
    def prompt(self) -> Compute:
        """The usual prompt, with everything in memory."""
        return self.prompts[0].compute

    @property
    def prompt_bytes(self) -> float:
        """Read for it."""
        return self.prompts[0].nbytes

    @property
    def prompt_s(self) -> float:
        """Seconds that it takes."""
        return self.prompts[0].seconds

    @property
    def token_s(self) -> float:
        """Seconds for a token of a reply."""
        return self.decode.others_s + sum(layer.seconds for layer in self.layers)

    @property
    def missed_bytes(self) -> float:
        """Read for a token of a reply."""
        return sum(layer.missed_bytes for layer in self.layers)

    def line(self) -> str:
        """What to say before the first token."""
        budget = self.budget
        resident = budget.stored_bytes * budget.resident_share
        units = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
        unit = next((unit for unit, size in units.items() if budget.stored_bytes >= size), "kB")
        return (
            f"of {budget.stored_bytes / units[unit]:.1f} {unit} of experts "
            f"{resident / units[unit]:.1f} stay in memory; disk "
            f"{budget.disk.bytes_s / 1e9:.2f} GB/s{self._correction()}: about "
            f"{_rounded(1 / self.token_s)} tokens/s, a prompt of {self.prompt.rows} tokens about "
            f"{_rounded(self.prompt_s)} s{self._assumption()}"
        )

    def _correction(self) -> str:
        """Where the disk's speed is not what was measured of it before."""
        if self.calibrated_bytes_s is None:
            return ", assumed" if self.budget.disk == NOMINAL_DISK else ""
        how = "assumed" if self.calibrated_bytes_s == NOMINAL_DISK.bytes_s else "measured"
        return f", {how} were {self.calibrated_bytes_s / 1e9:.2f}"

    def _assumption(self) -> str:
        if not self.is_foreseen_assumed or not self.missed_bytes:
            return ""
        return f" (if {self.foreseen:.0%} of the experts are foreseen)"

    def terms(self) -> dict[str, Any]:
        """All that the forecast consists of, for ``--json``; the names are a contract."""
        budget, disk = self.budget, self.budget.disk
        return {
            "stored_bytes": budget.stored_bytes,
            "memory_bytes": budget.nbytes,
            "slot_bytes": budget.slot_bytes,
            "slots": budget.slots,
            "experts": budget.experts,
            "disk_bytes_s": disk.bytes_s,
            "disk_is_direct": disk.is_direct,
            "disk_threads": disk.threads,
            "disk_measured": disk.measured or None,
            "disk_calibrated_bytes_s": self.calibrated_bytes_s,
            "hits_from": self.hits_from,
            "layers": [asdict(layer) for layer in self.layers],
            "decode": asdict(self.decode),
            "missed_bytes": self.missed_bytes,
            "foreseen": self.foreseen,
            "foreseen_is_assumed": self.is_foreseen_assumed,
            "handling": asdict(HANDLING),
            "token_s": self.token_s,
            "tokens_per_s": 1 / self.token_s,
            "prompt": asdict(self.prompt),
            "prompt_bytes": self.prompt_bytes,
            "prompt_s": self.prompt_s,
            "longer_prompts": [asdict(each) for each in self.prompts[1:]],
        }


def forecast(
    budget: ExpertBudget,
    decode: Compute,
    prompt: Compute,
    hit_shares: Mapping[str, float] | None = None,
    reads: ExpertReads | None = None,
    memory_bytes_s: float = math.inf,
    threads: int = 1,
    longer: Sequence[Compute] = (),
    call_rows: int = sys.maxsize,
) -> ExpertForecast:
    """Estimates what a model will take.

    Args:
        budget: of memory, the layers that share it, and the disk that others are read from.
        decode: a call of one row.
        prompt: the rows of a prompt.
        hit_shares: of each layer by its name, as a trace says; where there is none, tokens are
            taken to go to all experts alike.
        reads: what was read so far: a disk that brought far less than it was measured to counts as
            what it brought, and what was foreseen as what will be.
        memory_bytes_s: that one thread reads of memory.
        threads: that compute.
        longer: the rows of longer prompts.
        call_rows: most rows for which an expert is read once.
    """
    calibrated_bytes_s = budget.disk.bytes_s
    budget = _corrected(budget, reads)
    count, measured = len(budget.layers), _measured_foresight(reads)
    foreseen = FORESEEN if measured is None else measured
    layers = tuple(
        _layer(
            layer,
            budget.resident_share if hit_shares is None else hit_shares[layer.name],
            budget,
            Spans(
                own_s=decode.experts_s / count,
                between_s=(decode.others_s - decode.after_s) / count,
                fill_s=FILL_PASSES * layer.held_bytes / memory_bytes_s,
                foreseen=foreseen if number else 0.0,
            ),
        )
        for number, layer in enumerate(budget.layers)
    )
    return ExpertForecast(
        budget=budget,
        layers=layers,
        hits_from="a trace" if hit_shares else "tokens go to all experts alike",
        decode=decode,
        prompts=tuple(
            _prompt(budget, each, call_rows, memory_bytes_s, threads) for each in (prompt, *longer)
        ),
        foreseen=foreseen,
        is_foreseen_assumed=measured is None,
        calibrated_bytes_s=None
        if budget.disk.bytes_s == calibrated_bytes_s
        else calibrated_bytes_s,
    )


def _corrected(budget: ExpertBudget, reads: ExpertReads | None) -> ExpertBudget:
    """The budget with another disk, if what was read came too slowly for too long.

    While somebody waits somebody reads, so the disk brought no more than that.
    """
    if reads is None or reads.waited_s < LEAST_WAITED_S:
        return budget
    brought = max(1.0, reads.read_bytes / reads.waited_s)
    if brought * FAR_LESS > budget.disk.bytes_s:
        return budget
    return replace(budget, disk=DiskProfile(direct={1: brought}, measured="while the model ran"))


@dataclass(frozen=True, slots=True)
class Spans:
    """What a layer of experts takes beside its reads.

    Attributes:
        own_s: seconds that computing it takes.
        between_s: that computing takes from one such layer to the next.
        fill_s: to put an expert that was read in order.
        foreseen: of the experts that it needs, how many are before it asks for them.
    """

    own_s: float
    between_s: float
    fill_s: float
    foreseen: float


def _measured_foresight(reads: ExpertReads | None) -> float | None:
    """The share of what layers need that was foreseen and read early; None until it is measured."""
    if reads is None or reads.guessed < LEAST_GUESSED:
        return None
    return reads.recall if reads.early else 0.0  # where it did not pay nothing is


def _layer(
    layer: ExpertLayer, hit_share: float, budget: ExpertBudget, spans: Spans
) -> LayerForecast:
    """A layer at one token.

    Experts that are there are computed while others are read, and each of those is put in order
    while the next is read; so what is left after the last read is to put that in order and to
    compute it. Where the layer was foreseen its reads begin while others compute before it.
    """
    count, disk, read_s, seconds = layer.top_k, budget.disk, 0.0, 0.0
    for missing in range(count + 1):
        chance = math.comb(count, missing) * (1 - hit_share) ** missing
        chance *= hit_share ** (count - missing)
        disk_s = disk.read_s(missing, layer.stored_bytes)
        read_s += chance * disk_s
        reading = disk_s + missing * HANDLING.next_s
        last_s = HANDLING.asking_s + spans.fill_s + spans.own_s / count
        late_s = reading + last_s if missing else 0.0
        asked_s = max(spans.own_s, late_s)
        foreseen_s = max(spans.own_s, reading - spans.between_s)
        seconds += chance * (asked_s + spans.foreseen * (foreseen_s - asked_s))
    return LayerForecast(
        name=layer.name,
        experts=layer.experts,
        resident=layer.experts * budget.resident_share,
        hit_share=hit_share,
        missed_bytes=count * (1 - hit_share) * layer.stored_bytes,
        read_s=read_s,
        seconds=seconds,
    )


def _prompt(
    budget: ExpertBudget, compute: Compute, call_rows: int, memory_bytes_s: float, threads: int
) -> PromptForecast:
    """A prompt, in calls each of which reads an expert once."""
    nbytes = seconds = 0.0
    for start in range(0, compute.rows, call_rows):
        rows = min(call_rows, compute.rows - start)
        share = rows / compute.rows
        call = Compute(rows, compute.experts_s * share, compute.others_s * share)
        nbytes += sum(_prompt_bytes(layer, budget, rows) for layer in budget.layers)
        seconds += _prompt_s(budget, call, memory_bytes_s, threads)
    return PromptForecast(compute, nbytes, seconds)


def _prompt_s(budget: ExpertBudget, prompt: Compute, memory_bytes_s: float, threads: int) -> float:
    """Seconds for a call of a prompt: all but its first layer is read while others compute.

    Those of the first layer are read under its own products, if at all; whoever reads takes
    processor time from whoever computes.
    """
    read_s = processor_s = first_s = 0.0
    for number, layer in enumerate(budget.layers):
        missing = _prompt_bytes(layer, budget, prompt.rows) / layer.stored_bytes
        layer_s = missing * (layer.stored_bytes / budget.disk.bytes_s + HANDLING.next_s)
        fill_s = FILL_PASSES * layer.held_bytes / memory_bytes_s
        read_s += layer_s
        processor_s += missing * (HANDLING.processor_s + fill_s) / threads
        first_s = first_s if number else layer_s
    own_s = prompt.experts_s / len(budget.layers)
    return max(prompt.seconds + processor_s + max(0.0, first_s - own_s), read_s)


def _prompt_bytes(layer: ExpertLayer, budget: ExpertBudget, rows: int) -> float:
    """What a call reads of a layer: every expert that some row goes to, unless it is there."""
    active = layer.experts * (1 - (1 - layer.top_k / layer.experts) ** rows)
    return active * (1 - budget.resident_share) * layer.stored_bytes


def _rounded(value: float) -> str:
    """Two digits, which is more than a forecast knows.

    >>> _rounded(5.234), _rounded(0.0312), _rounded(123.4)
    ('5.2', '0.031', '123')
    """
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
