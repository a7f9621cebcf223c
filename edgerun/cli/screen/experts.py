"""What is expected of a model whose experts are read while it runs, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from edgerun.cli.screen.tables import size

if TYPE_CHECKING:
    from edgerun.plan.expert_forecast import ExpertForecast


def layer_rows(forecast: ExpertForecast) -> Iterator[dict[str, str]]:
    """Layers of experts as they stand in memory and on the disk; like neighbours together."""
    lines = [
        {
            "experts": f"{layer.experts}",
            "in memory": f"{layer.resident:.1f}",
            "on disk": f"{layer.experts - layer.resident:.1f}",
            "hits": f"{layer.hit_share:.0%}",
            "read for a token": size(layer.missed_bytes),
            "in": f"{layer.read_s * 1e3:.2f} ms",
            "the layer": f"{layer.seconds * 1e3:.2f} ms",
        }
        for layer in forecast.layers
    ]
    names = [layer.name for layer in forecast.layers]
    place = 0
    for line, same in groupby(lines):
        count = len(list(same))
        last = place + count - 1
        title = names[place] if count == 1 else f"{names[place]} to {names[last]}, each"
        yield {"layers": title, **line}
        place = last + 1


def term_pairs(forecast: ExpertForecast) -> dict[str, str]:
    """The terms of a forecast."""
    budget, disk, decode = forecast.budget, forecast.budget.disk, forecast.decode
    way = "directly" if disk.is_direct else "through the system's cache"
    measured = f"measured {disk.measured}" if disk.measured else "assumed"
    pairs = {
        "experts": f"{budget.experts}, {size(budget.stored_bytes)} on disk; room in memory for "
        f"{budget.slots} of {size(budget.slot_bytes)} each",
        "disk": f"{disk.bytes_s / 1e9:.2f} GB/s, read {way} by {disk.threads} "
        f"thread{'' if disk.threads == 1 else 's'}, {measured}",
        "hits": forecast.hits_from,
        "a token reads": size(forecast.missed_bytes),
        "a token computes": f"{decode.seconds * 1e3:.2f} ms, {decode.experts_s * 1e3:.2f} of them "
        "in layers of experts",
        "a token takes": f"{forecast.token_s * 1e3:.2f} ms, {1 / forecast.token_s:.3g} tokens/s",
    }
    for prompt in forecast.prompts:
        title = f"a prompt of {prompt.compute.rows}"
        read = f"{size(prompt.nbytes)}, in {prompt.nbytes / disk.bytes_s:.3g} s"
        computed = f"{prompt.compute.seconds:.3g} s, while others are read"
        pairs |= {f"{title} reads": read, f"{title} computes": computed}
        pairs[f"{title} takes"] = f"{prompt.seconds:.3g} s"
    return pairs
