"""``edgerun inspect``: what is in a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgerun.graph.ir import Constant, Graph
    from edgerun.model.bundle import Bundle

TERNARY = "ternary"
WEIGHT_ERROR = "relative_weight_error"
OF_EXPERTS = ("num_experts", "experts_per_token")  # of which dense models have nothing to say
# 0 in a manifest where layers differ, or nothing states it.
OF_LAYERS = ("intermediate_size", "num_kv_heads", "head_dim")
EXAMPLES = options.examples("edgerun inspect", "edgerun inspect ./my-model --tensors --json")


def inspect(
    model: options.Model = None,
    named: options.NamedModel = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all files, and compare them with their digests.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    from edgerun.llm.loading import open_model

    bundle = open_model(options.model_of(model, named), verify=verify)
    description = describe(bundle, tensors=tensors)
    if verify:  # or it would have been refused; another exporter's folder has no digests
        description["verified_files"] = 0 if bundle.is_foreign else len(bundle.manifest.files)
    if as_json:
        print(json.dumps(description, ensure_ascii=False))
        return
    _print(description)


def describe(bundle: Bundle, *, tensors: bool) -> dict[str, Any]:
    """What ``--json`` prints."""
    import msgspec

    from edgerun.llm.compiling import packing_of
    from edgerun.llm.options import LoadOptions

    manifest = msgspec.to_builtins(bundle.manifest)
    listed = list(_tensors(bundle.graph))
    formats: dict[str, dict[str, int]] = {}
    for tensor in listed:
        entry = formats.setdefault(tensor["format"], {"tensors": 0, "weights": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["weights"] += tensor["weights"]
        entry["bytes"] += tensor["bytes"]
    stated = {key for key, value in manifest["model"].items() if value or key not in OF_EXPERTS}
    return {
        "path": str(bundle.path),
        "digest": bundle.digest,
        "model": {key: value for key, value in manifest["model"].items() if key in stated},
        "formats": formats,
        "packing": {"asked": bundle.manifest.pack, "here": packing_of(bundle, LoadOptions())},
        "files": {name: entry["size"] for name, entry in manifest["files"].items()},
        **{name: manifest[name] for name in ("recipe", "source", "quality", "exporter")},
        **({"tensors": listed} if tensors else {}),
    }


def _tensors(graph: Graph) -> Iterator[dict[str, Any]]:
    """Every tensor once: embedding and head may be two constants of the same bytes."""
    places = set()
    for name, constant in graph.constants.items():
        place = _codes(constant).ctypes.data
        if place in places and constant.nbytes:
            continue
        places.add(place)
        shape = list(constant.shape)
        weights = 1
        for side in shape:
            weights *= side
        yield {
            "name": name,
            "format": _format(constant),
            "shape": shape,
            "weights": weights,
            "bytes": constant.nbytes,
        }


def _codes(constant: Constant) -> NDArray[Any]:
    """Its numbers, or the first ones of many."""
    from edgerun.formats import PackedWeight
    from edgerun.formats.stack import ExpertStack

    if isinstance(constant, ExpertStack):
        return _codes(constant.matrices[0])
    return constant.codes if isinstance(constant, PackedWeight) else constant


def _format(constant: Constant) -> str:
    from edgerun.formats import PackedWeight
    from edgerun.formats.stack import ExpertStack

    if isinstance(constant, ExpertStack):
        return _format(constant.matrices[0])
    if isinstance(constant, PackedWeight):
        kind = "_asym" * (constant.zeros is not None) + "_offset" * (constant.offsets is not None)
        return f"{constant.format}{kind}, blocks of {constant.block}"  # as recipes call it
    return str(constant.dtype)


def _sizes(model: dict[str, Any]) -> dict[str, Any]:
    """Sizes of a model, without the 0 of those that are not one number."""
    return {
        key: "no single number" if key in OF_LAYERS and not value else value
        for key, value in model.items()
    }


def _stated(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe on one screen: `--tensors` and `--json` say which projections rules changed."""
    shown = {name: value for name, value in recipe.items() if value not in ([], {})}
    if "tensors" in shown:
        shown["tensors"] = f"{len(shown['tensors'])} projections otherwise"
    return shown


def _explained(pairs: dict[str, Any]) -> dict[str, Any]:
    """The same, with what a figure is that every export leaves."""
    error = pairs.get(WEIGHT_ERROR)
    said = f"{error}, what rounding changed in proportion to the weights, root mean square"
    return pairs if error is None else pairs | {WEIGHT_ERROR: said}


def _amount(entry: dict[str, int]) -> str:
    from edgerun.cli.screen.tables import size

    tensors = f"{entry['tensors']} tensor" + "s" * (entry["tensors"] != 1)
    bits = entry["bytes"] * 8 / max(entry["weights"], 1)
    return f"{tensors}, {entry['weights']:,} weights, {size(entry['bytes'])}, {bits:.2f} bits each"


def _verified(count: int) -> str:
    if not count:
        return "verified: no file, for there is no manifest that has their digests"
    return f"verified: {count} file{' has' if count == 1 else 's have'} the digests of the manifest"


def _print(description: dict[str, Any]) -> None:
    from edgerun.cli.screen.tables import print_pairs, print_rows, size
    from edgerun.cli.screen.visible import visible

    print(f"{visible(description['path'])}  ({description['digest'][:12]})")
    print_pairs("model", _sizes(description["model"]))
    weights = {name: _amount(entry) for name, entry in description["formats"].items()}
    print_pairs("weights", weights)
    if any(name.startswith(TERNARY) for name in weights):
        print_pairs("ternary weights in memory", description["packing"])
    print_pairs("files", {name: size(count) for name, count in description["files"].items()})
    if "verified_files" in description:
        print(_verified(description["verified_files"]))
    print_pairs("recipe", _stated(description["recipe"]))
    for name in ("source", "quality", "exporter"):
        if description[name]:
            print_pairs(name, _explained(description[name]))
    if "tensors" in description:
        print_rows(description["tensors"])
