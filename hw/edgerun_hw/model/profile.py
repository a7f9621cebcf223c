"""What boards have been measured to do, figure by figure, each with who says so.

A profile is a JSON file: ``profiles/NAME.json`` here, or one of your own. Every figure has a value
in the unit that its name ends in, a ``kind`` ("published": somebody measured it and said how;
"assumed": nobody has), a source and a date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgerun.errors import InputError

FOLDER = Path(__file__).with_name("profiles")
DEFAULT = "kv260"
MOST = 1e6  # in any unit of ``FIGURES``
KINDS = ("published", "assumed")
DATE = re.compile(r"(read )?\d{4}-\d{2}-\d{2}")
FIGURES = (
    "attention_int8_gmac_per_s",
    "attention_fp16_gmac_per_s",
    "body_gb_per_s",
    "head_gb_per_s",
    "late_ports_least",
    "late_ports_most",
    "norm_ns_per_element",
    "gate_ns_per_element",
    "activations_us_per_step",
    "results_us_per_step",
    "rotary_ns_per_element",
    "again_ns_per_element",
    "lines_gb_per_s",
    "launch_us",
)


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        value: in the unit that its name ends in.
        kind: "published" or "assumed".
        source: where it stands, and how it was derived from what stands there.
        date: of the measurement, or "read" and the day on which an undated one was read.
    """

    value: float
    kind: str
    source: str
    date: str


@dataclass(frozen=True)
class Profile:
    """Figures of one board.

    Attributes:
        name: of the file, without its suffix.
        board: name of the board in ``hw/boards``.
        title: whose measurements these are.
        source: where all of them are.
        figures: one of each name in ``FIGURES``.
    """

    name: str
    board: str
    title: str
    source: str
    figures: Mapping[str, Figure]

    def __getitem__(self, name: str) -> float:
        """The value of a figure."""
        return self.figures[name].value

    def quote(self, name: str) -> str:
        """A figure as the basis of a term: value, unit and kind."""
        figure = self.figures[name]
        counted, _, per = name.partition("_per_")
        unit = counted.rpartition("_")[2].replace("gmac", "GMAC").replace("gb", "GB")
        return f"{figure.value:g} {unit}{f'/{per}' if per else ''}, {figure.kind}"


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with edgerun."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.json")))


def profile_for(board: str) -> str:
    """Returns the name of a profile of what was measured on a kind of board.

    Args:
        board: its name in ``hw/boards``.

    Raises:
        InputError: there is none.
    """
    boards = {load_profile(name).board: name for name in profile_names()}
    if board not in boards:
        raise InputError(
            f"nobody's measurements of the board {board!r} are here, only of {', '.join(boards)}: "
            "name rates with --profile"
        )
    return boards[board]


def load_profile(name: str = DEFAULT) -> Profile:
    """Reads a profile.

    Args:
        name: one of ``profile_names()``, or a path that ends in .json.

    Raises:
        InputError: there is none, or it is not as described above.
    """
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if name.endswith(".json"):
            raise InputError(f"there is no file {name}") from None
        raise InputError(
            f"there is no profile {name!r}: there are {', '.join(profile_names())}, or name a "
            "file that ends in .json"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the profile {path} cannot be read: {error}") from None
    return _profile(record, path)


def _profile(record: Any, path: Path) -> Profile:
    texts = ("board", "title", "source")
    if not isinstance(record, dict) or record.keys() != {*texts, "figures"}:
        raise InputError(f"the profile {path} must have {', '.join(texts)} and figures, no more")
    for text in texts:
        if not isinstance(record[text], str):
            raise InputError(f"the profile {path}: {text} must be a text")
    figures = record["figures"]
    names = set(figures) if isinstance(figures, dict) else set()
    if names != set(FIGURES):
        wrong = ", ".join(sorted(names ^ set(FIGURES)))
        raise InputError(f"the profile {path} lacks figures, or has unknown ones: {wrong}")
    return Profile(
        path.stem,
        record["board"],
        record["title"],
        record["source"],
        {name: _figure(path, name, figures[name]) for name in FIGURES},
    )


def _figure(path: Path, name: str, entry: Any) -> Figure:
    keys = [field.name for field in fields(Figure)]
    if not isinstance(entry, dict) or entry.keys() != set(keys):
        raise InputError(f"the profile {path}: {name} must have {', '.join(keys)}, no more")
    value = entry["value"]
    right = {
        "value": type(value) in (int, float) and 0 < value <= MOST,
        "kind": entry["kind"] in KINDS,
        "source": isinstance(entry["source"], str) and entry["source"].strip() != "",
        "date": isinstance(entry["date"], str) and bool(DATE.fullmatch(entry["date"])),
    }
    wrong = [key for key, is_right in right.items() if not is_right]
    if wrong:
        raise InputError(
            f"the profile {path}: {name} has no usable {wrong[0]} ({entry[wrong[0]]!r}): a value "
            f"is above 0 and at most {MOST:g}, a kind {' or '.join(KINDS)}, a date YYYY-MM-DD, "
            "after 'read' if it is not the measurement's"
        )
    return Figure(float(value), entry["kind"], entry["source"], entry["date"])
