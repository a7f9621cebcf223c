"""What goes in and out of a network, read off its translation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgerun.backends.openvino.translation import Extent, Fill, Translation, part_names
from edgerun.state import AttentionState


@dataclass(frozen=True, slots=True)
class Interface:
    """What goes in and out of a network, in order.

    Attributes:
        extent: its static sizes.
        inputs: names.
        fills: of the inputs that are computed for every call, how.
        past: states of layers whose keys and values before the call's rows are inputs.
        written: of layers whose keys and values are inputs with those of the call's rows.
        outputs: names of the segment's outputs.
        present: states of the layers whose new keys and values follow, in turn.
        passed: of outputs, keys and values that are an input as it came, by their place, the
            input's name: no device copies them, and the NPU's partitioner cannot.
    """

    extent: Extent
    inputs: tuple[str, ...]
    fills: dict[str, Fill]
    past: tuple[AttentionState, ...]
    written: tuple[AttentionState, ...]
    outputs: tuple[str, ...]
    present: tuple[AttentionState, ...]
    passed: dict[int, str] = field(default_factory=dict)


def results_of(translation: Translation) -> list[Any]:
    """What a network computes of the segment's outputs and of new keys and values."""
    passed = _passed(translation)
    values = (value for place, value in enumerate(_values_of(translation)) if place not in passed)
    return [translation.ops.result(value) for value in values]


def _values_of(translation: Translation) -> list[Any]:
    """The segment's outputs, then new keys and values."""
    rows = [part for layer in translation.present for part in layer.rows]
    return [*translation.outputs.values(), *rows]


def _passed(translation: Translation) -> dict[int, str]:
    """See ``Interface``; none if nothing else would be left to compute."""
    values = _values_of(translation)
    names = {
        place: value.get_friendly_name()
        for place, value in enumerate(values)
        if value.get_type_name() == "Parameter"
    }
    return names if len(names) < len(values) else {}


def interface_of(translation: Translation, results: list[Any]) -> Interface:
    """What goes into a network, without what no result needs, and what comes out."""
    read = _reachable(results)
    present = tuple(layer.state for layer in translation.present)

    def reads(state: AttentionState) -> bool:
        return any(name in read for name in part_names(state))

    return Interface(
        translation.extent,
        tuple(name for name in translation.inputs if name in read),
        translation.fills,
        tuple(state for state in present if reads(state)),
        tuple(state for state in translation.written_states if reads(state)),
        tuple(translation.outputs),
        present,
        _passed(translation),
    )


def model_of(translation: Translation) -> Any:
    """OpenVINO's model of a translation."""
    from openvino import Model

    results = results_of(translation)
    inputs = interface_of(translation, results).inputs
    return Model(results, [translation.inputs[name] for name in inputs], "segment")


def _reachable(results: list[Any]) -> set[str]:
    """Names of all nodes that results depend on."""
    names: set[str] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node.get_name() in names:
            continue
        names |= {node.get_name(), node.get_friendly_name()}
        waiting += [source.get_node() for source in node.input_values()]
    return names
