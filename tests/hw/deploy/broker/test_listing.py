"""What each release of dfx-mgr prints is understood; what none prints is not guessed at.

``listings.txt`` was written with printf and the format strings of ``listAccelerators`` at each tag
of Xilinx/dfx-mgr; the slots in it are those that the code there prints.
"""

from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.errors import FailureError
from edgerun_hw.deploy.broker.formats.listing import parse_listing
from edgerun_hw.deploy.emulate.dfx_mgr import RELEASES

SECTIONS = Path(__file__).with_name("listings.txt").read_text().split("## ")[1:]
LISTINGS = {title: text for title, _, text in (section.partition("\n") for section in SECTIONS)}
RULES_2025 = "".join(LISTINGS["2025.2"].splitlines(keepends=True)[:2])


@pytest.mark.parametrize(
    ("release", "handle"),
    [
        ("2021.2", "0"),
        ("2022.1", "0"),
        ("2023.2", "0"),
        ("2024.1", "0"),
        ("2024.2", "1"),  # slot 0, handle 1: firmware of the real-time processors has handle 0
        ("2025.2", "0"),
        ("2026.1", "edgerun-tlmm"),  # unloaded by name
    ],
)
def test_list_of_every_release_is_understood(release: str, handle: str) -> None:
    listing = parse_listing(LISTINGS[release])
    rows = {row.name: row.handles for row in listing.rows if row.name != "other.bit.bin"}
    assert rows == {"k26-starter-kits": (), "edgerun-tlmm": (handle,)}
    assert listing.form.by_name == (release == "2026.1")
    assert [row.name for row in listing.loaded][0] == "edgerun-tlmm"


def test_simulated_releases_have_a_list_each() -> None:
    assert RELEASES.keys() - {"2023.1"} == {title for title in LISTINGS if " " not in title}


def test_name_follows_full_slots_without_a_space() -> None:
    listing = parse_listing(RULES_2025 + LISTINGS["2025.2 three slots"])
    assert [(row.name, row.handles) for row in listing.rows] == [("edgerun-tlmm", ("0", "1", "2"))]


@pytest.mark.parametrize(
    ("text", "handle"),
    [
        (RULES_2025 + LISTINGS["2025.2 by hand"], "0"),
        (LISTINGS["2026.1"], "other.bit.bin"),
    ],
)
def test_what_was_loaded_by_hand_counts_as_loaded(text: str, handle: str) -> None:
    listing = parse_listing(text)
    assert {row.name: row.handles for row in listing.loaded}["other.bit.bin"] == (handle,)


def test_warnings_before_the_list_are_skipped() -> None:
    text = "Traceback: no distro\n" + LISTINGS["2024.2"]
    assert parse_listing(text) == parse_listing(LISTINGS["2024.2"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "connect: No such file or directory",
        LISTINGS["2024.2"].replace("0->1,", "here"),
        LISTINGS["2022.1"].replace(" 0,", " 0->0"),
        LISTINGS["2026.1"] + "and more\n",
    ],
)
def test_unknown_output_is_a_failure_and_not_nothing_loaded(text: str) -> None:
    with pytest.raises(FailureError, match="xmutil listapps prints"):
        parse_listing(text)
