"""Runs a model and notes which experts every token goes to.

The routes of each layer are made outputs of the graph, so that they come out of the programs that
compute them. These compute the same bits as without (``tests/llm/test_tracing.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Launches, Values
from edgerun.errors import InputError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.llm.arguments import check_path, load_options
from edgerun.llm.llm import LLM
from edgerun.llm.loading import open_model, prepare_bundle
from edgerun.offload.trace_file import CHOICE, NO_EXPERT, Trace
from edgerun.plan.programs import Programs
from edgerun.state import Batch, SequenceStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgerun.llm.options import LoadKeywords

BACKEND = "cpu"  # others may run a whole graph, or keep what they made of one without its routes
LAYER = re.compile(r"layers\.(\d+)")


class TracedLLM(LLM):
    """A model of experts that notes the routes of a reply.

    Another needs a model that was loaded anew, if its text begins alike: what the cache remembers
    is not computed again.
    """

    def trace(self, prompt_tokens: int) -> Trace:
        """The routes of the last reply and its prompt.

        The last token of a reply has none: nothing was computed of it.

        Args:
            prompt_tokens: how many tokens the prompt had.

        Raises:
            InputError: there was none, or several replies were computed together.
        """
        programs = self.model.programs
        assert isinstance(programs, Recorder)
        graph = self.model.bundle.graph if self.model.bundle else None
        assert graph is not None
        nodes = route_nodes(graph)
        return Trace(
            model=self.model.digest,
            layers=layer_numbers(nodes),
            experts=max(graph.shapes[node.outputs[0]].width for node in nodes),
            prompt_tokens=prompt_tokens,
            choices=programs.choices(),
        )


def load_traced(
    path: str | os.PathLike[str] | None = None, **options: Unpack[LoadKeywords]
) -> TracedLLM:
    """Loads a bundle whose tokens are to be traced; it runs on the processor.

    Args:
        path: folder of the bundle; None for the model that comes with edgerun.
        options: see ``LoadOptions``; of those that say what runs it none.

    Raises:
        BundleError: the bundle is missing, broken or altered.
        InputError: an option is unusable.
        UnsupportedError: the model has no experts.
    """
    checked = replace(load_options(options), backend=BACKEND)
    folder = None if path is None else check_path(path)
    bundle = open_model(folder, verify=checked.verify, progress=checked.progress)
    if bundle.graph.refusal:
        raise UnsupportedError(bundle.graph.refusal)
    nodes = route_nodes(bundle.graph)
    if not nodes:
        raise UnsupportedError(
            f"{bundle.path} is a dense model: it has no layers of experts that could be traced; "
            "name a mixture of experts"
        )
    routes = [node.outputs[0] for node in nodes]
    graph = replace(bundle.graph, outputs=[*bundle.graph.outputs, *routes])
    model = prepare_bundle(replace(bundle, graph=graph), checked)
    model.programs = Recorder(model.programs, {node.outputs[0]: _top_k(node) for node in nodes})
    return TracedLLM(model)


class Recorder(Programs):
    """Programs that note the routes of the rows that they compute, all of one sequence."""

    def __init__(self, programs: Programs, routes: Mapping[str, int]) -> None:
        """Takes programs whose outputs are the logits and some routes.

        Args:
            programs: of a model.
            routes: most experts of a row, by the names of the routes.
        """
        super().__init__({}, meters=programs.meters)
        self._programs = programs
        self._routes = routes
        self._tokens: list[NDArray[np.void]] = []  # each [layers, top_k]
        self._sequence = -1  # whose these are

    @property
    def max_rows(self) -> int:
        return self._programs.max_rows

    @property
    def launches(self) -> dict[str, Launches]:
        return self._programs.launches

    def run(self, batch: Batch, cache: SequenceStore) -> Values:
        """Runs a batch; see ``Programs``.

        Raises:
            InputError: it goes on behind rows that were not noted, or are another text's, or has
                rows of several texts.
        """
        start, sequence = int(batch.positions[0]), int(batch.sequences[0])
        if (batch.sequences != sequence).any():
            self._tokens.clear()  # of which some may be of one of these texts, some of another
            raise InputError(
                "several texts are computed at a time, and a trace is of one: let the model reply "
                "to one after the other"
            )
        if start and (start, sequence) != (len(self._tokens), self._sequence):
            raise InputError(
                "the beginning of this text is remembered from an earlier one, and its routes are "
                "not: load the model anew to trace it"
            )
        values = self._programs.run(batch, cache)
        top_k = max(self._routes.values())
        layers = [choices_of(values[name], top_k) for name in self._routes]
        del self._tokens[start:]  # of a reply before
        self._sequence = sequence
        self._tokens.extend(np.stack(layers, axis=1))
        return values

    def choices(self) -> NDArray[np.void]:
        """Of all tokens, ``[tokens, layers, top_k]``; see ``Trace``.

        Raises:
            InputError: there are none.
        """
        if not self._tokens:
            raise InputError("nothing was traced yet: let the model reply to one text before")
        return np.stack(self._tokens)

    def close(self) -> None:
        self._programs.close()


def choices_of(routes: NDArray[np.float32], top_k: int) -> NDArray[np.void]:
    """The experts of every row, by falling weight, of equal ones the lower number first.

    Args:
        routes: ``[rows, experts]``, 0 where an expert is not chosen.
        top_k: choices of a row; ``NO_EXPERT`` where there are fewer.

    Returns:
        choices of type ``CHOICE``, ``[rows, top_k]``.
    """
    choices = np.zeros((len(routes), top_k), CHOICE)
    choices["expert"] = NO_EXPERT
    order = np.argsort(-np.abs(routes), axis=1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(routes, order, axis=1)
    width = order.shape[1]  # smaller where a layer has fewer experts
    choices["expert"][:, :width] = np.where(weights != 0, order, NO_EXPERT)
    choices["weight"][:, :width] = weights
    return choices


def route_nodes(graph: Graph) -> list[Node]:
    """The routers of a model that have a choice, in the order of its layers."""
    nodes = [node for node in graph.nodes if node.op == "route"]
    return [node for node in nodes if graph.shapes[node.outputs[0]].width > 1]


def layer_numbers(nodes: Sequence[Node]) -> tuple[int, ...]:
    """Numbers of layers as their nodes' names say, else counted from 0."""
    matches = [LAYER.search(node.name) for node in nodes]
    numbers = tuple(int(match.group(1)) for match in matches if match)
    is_clear = len(numbers) == len(nodes) and list(numbers) == sorted({*numbers})
    return numbers if is_clear else tuple(range(len(nodes)))


def _top_k(node: Node) -> int:
    return int(node.attrs["top_k"])
