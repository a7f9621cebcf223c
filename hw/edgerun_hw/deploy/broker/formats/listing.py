"""Reads what ``xmutil listapps`` prints; one row for each form that dfx-mgr has had.

The forms are those of ``listAccelerators`` in ``src/daemon_helper.c`` of Xilinx/dfx-mgr, at the
tags xilinx_v2021.1 to xilinx_v2026.1. A slot is printed as "-1" (not loaded), "0," (loaded to slot
0), "0->3," (slot 0, handle 3: what unloading wants) or "0"; a list of them without spaces between.
What was loaded by hand has "-" or "REGION->3" there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import FailureError

NOT_LOADED = "-1"
COPROCESSOR = "RPU"  # firmware of the real-time processors, which is none of our business


@dataclass(frozen=True)
class Row:
    """A package that dfx-mgr lists.

    Attributes:
        name: what it is loaded by.
        handles: what it is unloaded by, one for each slot that it is loaded to; none if it is not.
    """

    name: str
    handles: tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """One form of the list.

    Attributes:
        title: first words of the line with the columns' names.
        last: last of these words.
        row: matches a row, with the groups ``name``, ``slots`` and ``kind``.
        by_name: whether packages are unloaded by name; else by slot or handle.
    """

    title: tuple[str, ...]
    last: str
    row: re.Pattern[str]
    by_name: bool = False


_SLOTS = r"(?P<slots>-1|(?:\d+,)+)"
_HANDLES = r"(?P<slots>-1|(?:\w+->\d+,?)+)"
_BY_NAME = r"\s*(?P<name>\S+)\s(?P<kind>.*\s)"
FORMS = {
    "2021.1 to 2023.1": Form(("Accelerator",), "Active_slot", re.compile(_BY_NAME + _SLOTS)),
    "2023.2, 2024.1": Form(("Accelerator",), "Active_slot", re.compile(_BY_NAME + _SLOTS)),
    "2024.2": Form(("Accelerator",), "slot->handle", re.compile(_BY_NAME + _HANDLES)),
    # The name follows without a space where the slots fill their column.
    "2025.2": Form(
        ("#", "Accel_type"),
        "Accelerator",
        re.compile(
            r"\s*\d+ (?P<kind>.*\s)(?P<slots>-1(?=\s)|(?:\w+->\d+,)+|\w+->\d+(?=\s))"
            r"\s*(?P<name>\S+)"
        ),
    ),
    "2026.1": Form(
        ("ID", "accelType"),
        "Accelerator",
        re.compile(r"\s*\d+ (?P<kind>.*\s)(?P<slots>-1|-|\d+(?:,\d+)*)\s+(?P<name>\S+)"),
        by_name=True,
    ),
}
RULE = re.compile(r"[-\s]*")


@dataclass(frozen=True)
class Listing:
    """What dfx-mgr has.

    Attributes:
        form: of the list; tells how packages are unloaded.
        rows: its packages.
    """

    form: Form
    rows: tuple[Row, ...]

    @property
    def loaded(self) -> tuple[Row, ...]:
        """The packages that are loaded to the logic."""
        return tuple(row for row in self.rows if row.handles)


def parse_listing(text: str) -> Listing:
    """Reads the output of ``xmutil listapps``.

    Raises:
        FailureError: it is in no known form: what is loaded is then not guessed.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    start, form = _form(lines)
    if form is None:
        shown = lines[0].strip()[:80] if lines else "nothing"
        raise FailureError(
            f"xmutil listapps prints {shown!r}, which is no list of dfx-mgr 2021.1 to 2026.1: is "
            "dfx-mgr running (systemctl status dfx-mgr)?"
        )
    rows = []
    for line in lines[start + 1 :]:
        if RULE.fullmatch(line):
            continue
        match = form.row.fullmatch(line.rstrip())
        if match is None:
            raise FailureError(
                f"xmutil listapps prints {line.strip()[:80]!r}, which is no row of it"
            )
        rows.append(_row(match, form))
    return Listing(form, tuple(row for row in rows if row is not None))


def _form(lines: list[str]) -> tuple[int, Form | None]:
    for number, line in enumerate(lines):  # others may have written something before
        words = line.split()
        for form in FORMS.values():
            if tuple(words[: len(form.title)]) == form.title and words[-1] == form.last:
                return number, form
    return 0, None


def _row(match: re.Match[str], form: Form) -> Row | None:
    if COPROCESSOR in match["kind"].split():
        return None
    name, slots = match["name"], match["slots"].strip(",").split(",")
    if slots == [NOT_LOADED]:
        return Row(name, ())
    if form.by_name:
        return Row(name, (name,) * len(slots))
    return Row(name, tuple(slot.partition("->")[2] or slot for slot in slots))
