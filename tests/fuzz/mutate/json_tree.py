"""Mutations of JSON documents that stay JSON, most of them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.mutate.values import anything, damage, integer, number, text, write_json

Path = tuple[Any, ...]


def mutate_json(data: bytes, draw: random.Random, root: Path = ()) -> bytes:
    """One to three changes below ``root``; rarely the text itself is damaged."""
    if draw.random() < 0.08:
        return damage(data, draw)
    tree = json.loads(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        change(tree, draw, root)
    written = write_json(tree, ascii_only=draw.random() < 0.5)
    if draw.random() < 0.03:
        return written.replace(b"{", b"{" + written[1:-1] + b",", 1)  # every key twice
    return written


def change(tree: Any, draw: random.Random, root: Path = ()) -> None:
    """Changes one value of a tree in place."""
    paths = [path for path in walk(tree) if len(path) > len(root) and path[: len(root)] == root]
    if not paths:
        return
    path = draw.choice(paths)
    parent, key = at(tree, path[:-1]), path[-1]
    value = parent[key]
    how = draw.randrange(8)
    if how <= 2:
        parent[key] = near(value, draw)
    elif how == 3:
        parent[key] = anything(draw)
    elif how == 4:
        del parent[key]
    elif how == 5:
        parent[key] = copy.deepcopy(at(tree, draw.choice(paths)))
    elif how == 6 and isinstance(parent, dict):
        parent[draw.choice((str(key).upper(), str(key) + "_", text(draw)))] = parent.pop(key)
    else:
        parent[key] = draw.choice(([value], {"value": value}, str(value), [value] * 3))


def near(value: Any, draw: random.Random) -> Any:
    """A value of the same type that is hardly what a reader expects."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return integer(draw, value)
    if isinstance(value, float):
        return draw.choice((number(draw), -value, value * 1e30, 7))
    if isinstance(value, str):
        return draw.choice((text(draw), value * 2, value[:-1], value + "\0", value.upper()))
    if isinstance(value, list):
        return draw.choice(([], value[:-1], value * 2, value[::-1], [*value, anything(draw)]))
    if isinstance(value, dict):
        return draw.choice(({}, [value], {**value, text(draw): anything(draw)}))
    return anything(draw)


def walk(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of all values of a tree, its own included."""
    yield path
    items: Any = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    for key, value in items:
        yield from walk(value, (*path, key))


def at(tree: Any, path: Path) -> Any:
    """The value at a path."""
    for key in path:
        tree = tree[key]
    return tree
