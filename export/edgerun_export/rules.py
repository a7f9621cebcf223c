"""Rules that give some projections another format than the rest: ``*.down_proj=int8:64``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.values import whole_number
from edgerun_export.architectures import DecoderSpec
from edgerun_export.checkpoint.codecs import HIGHEST_INTEGER
from edgerun_export.checkpoint.minima import MINIMA
from edgerun_export.checkpoint.views.integer_types import INTEGER_FORMATS, REORDERED
from edgerun_export.quantize import block_layout
from edgerun_export.quantize.blocks import are_halves
from edgerun_export.recipe import (
    GROUP_SIZES,
    MIN_BLOCK,
    SOURCE,
    Recipe,
    TensorRecipe,
    check_choice,
    make_recipe,
    method_names,
    weight_names,
)
from edgerun_export.source.weights import SourceWeights

_FLOATS = ("F32", "F16", "BF16")
_JUDGED_ROWS = 16  # of a matrix, by which its scales are judged
_ROW_SIZES = (64, 128)  # blocks that share the scale of a row, beside the usual ones of a format
_BY_BITS = ("ternary", "int2", "int4", "int8")
_SYNTAX = "PATTERN=FORMAT[:GROUP[:METHOD]], such as *.down_proj=int8:64"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule says.

    Attributes:
        pattern: shell pattern of projections, such as ``layers.0.*``; ``*`` stands for any text,
            dots included. The leading ``model.`` may be left out.
        weights: their format, or ``source`` for the one that holds what the checkpoint has.
        group_size: weights that share a scale; None for the recipe's if the format is the same,
            and otherwise the format's usual number.
        method: how they are quantised; None for the recipe's if the format is the same, and
            otherwise the usual one.
        text: the rule as it was given.
    """

    pattern: str
    weights: str
    group_size: int | None
    method: str | None
    text: str

    def matches(self, module: str) -> bool:
        """Whether the rule concerns a projection, ``model.layers.N.<path>``."""
        short = module.removeprefix("model.")
        return fnmatchcase(short, self.pattern) or fnmatchcase(module, self.pattern)


def parse_rule(text: str) -> Rule:
    """Reads ``PATTERN=FORMAT[:GROUP[:METHOD]]``.

    Raises:
        UnsupportedError: it is written otherwise, or names what is not offered.
    """
    pattern, equals, kind = text.strip().rpartition("=")
    weights, *others = kind.split(":")
    group, method = [*others, "", ""][:2]
    is_group = not group or whole_number(group) is not None
    if not (pattern and equals and weights and is_group) or len(others) > 2:
        raise UnsupportedError(f"--rule '{text[:100]}' is no rule; expected {_SYNTAX}")
    if weights == SOURCE and others:
        raise UnsupportedError(f"--rule '{text[:100]}': {SOURCE} comes with groups of its own")
    if weights == "fp32" and any(others):
        raise UnsupportedError(
            f"--rule '{text[:100]}': fp32 is not rounded, so a group or a method has no effect; "
            "leave it out"
        )
    option = f"rule '{text[:100]}':"
    check_choice(option, weights, (*weight_names(), SOURCE))
    if group:
        check_choice(option, int(group), GROUP_SIZES)
    if method:
        check_choice(option, method, method_names())
    return Rule(pattern, weights, int(group) if group else None, method or None, text.strip())


def source_recipe(source: SourceWeights, module: str) -> TensorRecipe:
    """The format that holds a projection as the checkpoint stores it.

    Integers times scales stay as they are, and so do those with minima (Q4_K, say) but for experts;
    floats stay floats. What is neither is rounded to int8.
    """
    kind = source.stored_type(f"{module}.weight")
    if _has_minima(source, module):
        return TensorRecipe(MINIMA[kind].weights, MINIMA[kind].group)
    fallback = TensorRecipe("fp32" if kind in _FLOATS else "int8", 32)
    return _integer_recipe(source, module) or fallback


def _integer_recipe(source: SourceWeights, module: str) -> TensorRecipe | None:
    """The format that holds a projection's integers; None if there are none, or no blocks fit."""
    name = f"{module}.weight"
    count, kind, columns = source.groups(name), source.stored_type(name), source.shape(name)[1]
    if count is None:
        return None
    weights = INTEGER_FORMATS.get(kind, "")
    if not weights:
        high = 1 if source.is_ternary(name) else HIGHEST_INTEGER[kind]
        weights = next(each for each in _BY_BITS if block_layout(each).high >= high)
    if count > 1 and columns // count % MIN_BLOCK:
        return None
    usual = make_recipe(weights).group_size
    of_rows = (usual, *_ROW_SIZES) if kind in INTEGER_FORMATS else (usual,)
    sizes = reversed(GROUP_SIZES if count > 1 else of_rows)
    fitting = (size for size in sizes if columns // count % size == 0)
    return TensorRecipe(weights, next(fitting, usual))


def _has_minima(source: SourceWeights, module: str) -> bool:
    """Whether a projection is stored with minima that a format keeps; no expert's are."""
    is_stored = source.affine(f"{module}.weight", slice(0, 1)) is not None
    return is_stored and not source.spec.is_expert(module)


def check_offsets(recipe: Recipe, spec: DecoderSpec) -> None:
    """Checks that formats with offsets are asked for only where a graph can have them.

    Raises:
        UnsupportedError: rows are no whole groups, or belong to an expert.
    """
    for module, width in _projections(spec):
        kind = recipe.tensor(module)
        if kind.weights == "fp32" or not block_layout(kind.weights).has_offsets:
            continue
        if spec.is_expert(module):
            raise UnsupportedError(
                f"experts have no offsets, so '{module}' cannot be {kind.weights}; choose a format "
                "without for it, with a --rule such as '*expert*=int8'"
            )
        if width % kind.group_size:
            path = module.rpartition(".")[2]
            raise UnsupportedError(
                f"{kind.weights} sums whole groups of inputs: the rows of '{module}' have {width} "
                f"weights, which are no whole groups of {kind.group_size}; {_fitting(width)}; "
                f"a --rule such as '*.{path}=int4' gives it a format without offsets"
            )


def _fitting(width: int) -> str:
    """Which sizes of groups rows can be cut into, for a message."""
    sizes = ", ".join(str(size) for size in GROUP_SIZES if width % size == 0)
    return f"groups of {sizes} fit" if sizes else "no group size fits"


def two_bit_formats(recipe: Recipe, spec: DecoderSpec) -> list[str]:
    """Formats with 2-bit codes that projections have."""
    kinds = {recipe.tensor(module) for module, _ in _projections(spec)}
    return sorted({kind.weights for kind in kinds if kind.bits == 2})


def commonest_source_recipe(source: SourceWeights) -> TensorRecipe:
    """How most projections are stored by :func:`source_recipe`."""
    kinds = [source_recipe(source, module) for module, _ in _projections(source.spec)]
    return Counter(kinds).most_common(1)[0][0]


def keeps_integers(source: SourceWeights) -> bool:
    """Whether :func:`source_recipe` keeps what a checkpoint has, and most of that is integers."""
    modules = [module for module, _ in _projections(source.spec)]
    floats = sum(source.stored_type(f"{module}.weight") in _FLOATS for module in modules)
    return 2 * floats < len(modules) and not _rounded_types(source)


def source_warnings(source: SourceWeights) -> list[str]:
    """What :func:`source_recipe` does not keep."""
    return [
        f"{count} projections are stored as {kind}, {_reason(kind)}, and are rounded to int8"
        for kind, count in _rounded_types(source).items()
    ] + [
        f"{count} projections are stored as {kind}, whose scales are products; codes stay, and "
        "scales are rounded to half precision, by one part in 2,048 at most"
        for kind, count in _halved_types(source).items()
    ]


def rounded_source(source: SourceWeights) -> str | None:
    """A sentence about a source whose projections were rounded before; None for one of floats."""
    modules = [module for module, _ in _projections(source.spec)]
    kinds = Counter(source.stored_type(f"{module}.weight") for module in modules)
    rounded = {kind: count for kind, count in kinds.items() if kind not in _FLOATS}
    if not rounded:
        return None
    parts = ", ".join(f"{count} are {kind}" for kind, count in rounded.items())
    return (
        f"the source is rounded already: of its {len(modules)} projections {parts}; changes are "
        "from there, and not from the model that it was made of"
    )


def _reason(kind: str) -> str:
    """Why weights of a type are rounded."""
    if kind.endswith(REORDERED):
        return "whose groups are no runs of inputs of one length, as after desc_act"
    if kind in INTEGER_FORMATS:
        return f"whose groups are no whole blocks of {MIN_BLOCK} inputs"
    return "whose weights are not integers times a scale"


def _rounded_types(source: SourceWeights) -> dict[str, int]:
    """Types that are rounded anew, with the number of projections that have them."""
    modules = [module for module, _ in _projections(source.spec)]
    kinds = Counter(
        source.stored_type(f"{module}.weight")
        for module in modules
        if not _has_minima(source, module) and _integer_recipe(source, module) is None
    )
    return {kind: count for kind, count in kinds.items() if kind not in _FLOATS}


def _halved_types(source: SourceWeights) -> dict[str, int]:
    """Types with minima whose scales half precision does not hold, with how many have them."""
    kinds: Counter[str] = Counter()
    for module, _ in _projections(source.spec):
        name = f"{module}.weight"
        if _has_minima(source, module) and not all(map(are_halves, _some_scales(source, name))):
            kinds[source.stored_type(name)] += 1
    return dict(kinds)


def _some_scales(source: SourceWeights, name: str) -> Iterator[NDArray[np.float32]]:
    """Scales of a few rows from all parts of a matrix with minima; a single row may be zeros."""
    rows = source.shape(name)[0]
    for row in range(0, rows, -(-rows // _JUDGED_ROWS)):
        stored = source.affine(name, slice(row, row + 1))
        if stored is not None:
            yield stored.scales


def with_rules(
    recipe: Recipe,
    texts: Sequence[str],
    spec: DecoderSpec,
    of_source: Callable[[str], TensorRecipe] | None = None,
) -> Recipe:
    """Returns a recipe in which the projections of ``spec`` are stored as rules say.

    Where several match a projection, the last one counts.

    Args:
        recipe: for those that no rule matches.
        texts: the rules.
        spec: the decoder.
        of_source: what the format ``source`` is for the projection at a module path.

    Raises:
        UnsupportedError: a rule is malformed, matches no projection, asks for groups that the rows
            of one that it matches cannot be cut into, tells experts of a layer apart, or rounds the
            inputs of some of an expert's projections.
    """
    rules = [parse_rule(text) for text in texts]
    tensors: dict[str, TensorRecipe] = {}
    matched: set[Rule] = set()
    for module, width in _projections(spec):
        concerning = [rule for rule in rules if rule.matches(module)]
        matched.update(concerning)
        if concerning:
            rule = concerning[-1]
            tensors[module] = (
                of_source(module)
                if of_source is not None and rule.weights == SOURCE
                else _tensor_recipe(rule, recipe, module, width)
            )
    for rule in rules:
        if rule not in matched:
            raise UnsupportedError(
                f"--rule '{rule.text}' matches no projection; this {spec.architecture} has "
                f"layers.0 to layers.{spec.num_layers - 1} with {_paths(spec)}"
            )
    _check_experts(tensors, spec)
    usual = recipe.tensor("")
    if recipe.activations == "int8":
        _check_rounding({**dict.fromkeys(dict(_projections(spec)), usual), **tensors}, spec)
    changed = {module: kind for module, kind in tensors.items() if kind != usual}
    return replace(
        recipe,
        rules=tuple(rule.text for rule in rules),
        tensors=changed,
        ruled=frozenset(tensors),
    )


def _projections(spec: DecoderSpec) -> Iterator[tuple[str, int]]:
    """Module path and row width of every projection."""
    for layer in range(spec.num_layers):
        for projection in spec.projections(layer):
            yield f"model.layers.{layer}.{projection.path}", projection.in_features


def _check_experts(tensors: Mapping[str, TensorRecipe], spec: DecoderSpec) -> None:
    """Checks that the experts of a layer differ in weights alone, as runtimes take for granted."""
    for layer in range(spec.num_layers):
        networks = spec.feed_forward(layer)
        others = networks[1:]
        for name, projection in networks[0].items() if others else ():
            module = f"model.layers.{layer}.{projection.path}"
            for other in others:
                same = f"model.layers.{layer}.{other[name].path}"
                if tensors.get(same) != tensors.get(module):
                    raise UnsupportedError(
                        f"'{module}' and '{same}' would be stored in different ways, and the "
                        "experts of a layer must not be: write * for the expert's number in a "
                        "--rule, or, where --weights source finds them so, add a --rule that gives "
                        "them one format, such as '*.experts.*=int8'"
                    )


def _check_rounding(tensors: Mapping[str, TensorRecipe], spec: DecoderSpec) -> None:
    """Checks that an expert's inputs are rounded for all of its projections or for none."""
    for layer in range(spec.num_layers):
        experts = spec.feed_forward(layer)
        if len(experts) < 2:
            continue
        paths = [f"model.layers.{layer}.{each.path}" for each in experts[0].values()]
        floats = [path for path in paths if tensors[path].weights == "fp32"]
        rounded = [path for path in paths if path not in floats]
        if floats and rounded:
            raise UnsupportedError(
                f"'{floats[0]}' would be fp32 and '{rounded[0]}' {tensors[rounded[0]].weights}, "
                "whose inputs are rounded to 8 bits, and an expert's inputs are rounded for all of "
                "its projections or for none: take --activations fp32, or no fp32 for experts"
            )


def _paths(spec: DecoderSpec) -> str:
    names = [projection.path for projection in spec.projections(0)]
    return ", ".join(names[:7]) + (", ..." if len(names) > 7 else "")


def _tensor_recipe(rule: Rule, recipe: Recipe, module: str, width: int) -> TensorRecipe:
    if rule.group_size is not None and rule.weights != "fp32" and width % rule.group_size:
        raise UnsupportedError(
            f"--rule '{rule.text}': the rows of '{module}' have {width} weights, which are no "
            f"whole groups of {rule.group_size}; {_fitting(width)}"
        )
    same = rule.weights == recipe.weights
    usual = recipe if same else make_recipe(rule.weights)
    return TensorRecipe(
        rule.weights,
        usual.group_size if rule.group_size is None else rule.group_size,
        usual.method if rule.method is None else rule.method,
    )
