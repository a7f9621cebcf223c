"""The register description, and that everything generated from it agrees with it."""

import copy
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.registers import description as registers
from edgerun_hw.registers import generated

tomllib = pytest.importorskip("tomllib", reason="reading the description needs Python 3.11")


@pytest.fixture(scope="module")
def data() -> dict:
    return tomllib.loads(registers.DESCRIPTION.read_text())


@pytest.fixture(scope="module")
def description() -> registers.Description:
    return registers.read_description()


def test_generated_files_are_up_to_date():
    assert generated.stale_files() == []


def test_all_six_outputs_are_generated_in_a_checkout():
    names = {path.name for path in generated.generated_files()}
    assert names == {
        *("register_map.py", "tlmm.hwh", "tlmm_pkg.sv", "fpga-registers.md"),
        *("tlmm_exp2.sv", "tlmm_glue_reciprocal.sv"),
    }


def test_a_changed_file_is_stale_and_writing_repairs_it(tmp_path: Path, monkeypatch, capsys):
    writers = generated.generated_files()
    copies = {tmp_path / path.name: write for path, write in writers.items()}
    monkeypatch.setattr(generated, "generated_files", lambda: copies)
    assert len(generated.stale_files()) == 6  # none is there
    assert generated.main(["--write"]) == 0
    assert generated.main(["--check"]) == 0
    victim = tmp_path / "register_map.py"
    victim.write_text(victim.read_text().replace("0x014", "0x018"))
    assert generated.main(["--check"]) == 1
    assert "register_map.py differs" in capsys.readouterr().err


def test_unknown_arguments_are_refused(capsys):
    assert generated.main(["--wirte"]) == 2
    assert "--write" in capsys.readouterr().err


def test_systemverilog_has_the_same_numbers(repo_root: Path):
    text = (repo_root / "hw/rtl/common/tlmm_pkg.sv").read_text()
    offsets = re.findall(r"\[11:0\] REG_(\w+) = 12'h([0-9a-f]{3});", text)
    assert {name: int(value, 16) for name, value in offsets} == regs.OFFSETS
    numbers = {name: int(value) for name, value in re.findall(r"int (\w+) = (\d+);", text)}
    for name in ("CODE_BITS", "TABLES", "PORT_ROWS", "GROUP", "MAX_MAGNITUDE", "ENTRY_BITS"):
        assert numbers[name] == getattr(regs, name)
    assert numbers["ERROR_WATCHDOG_BIT"] == regs.ERROR_WATCHDOG.lsb
    assert numbers["GEOMETRY_QUEUE_DEPTH_LSB"] == regs.GEOMETRY_QUEUE_DEPTH.lsb
    assert numbers["GEOMETRY_QUEUE_DEPTH_WIDTH"] == regs.GEOMETRY_QUEUE_DEPTH.width


def test_hardware_description_lists_every_word(repo_root: Path):
    root = ET.parse(repo_root / "hw/edgerun_hw/simulate/board/tlmm.hwh").getroot()
    offsets = {}
    for element in root.iter("REGISTER"):
        properties = {p.get("NAME"): p.get("VALUE") for p in element.findall("PROPERTY")}
        offsets[element.get("NAME")] = int(properties["ADDRESS_OFFSET"], 16)
    assert offsets == regs.OFFSETS
    assert [m.get("VLNV") for m in root.iter("MODULE")][1] == regs.VLNV


def test_documentation_names_every_register(repo_root: Path, description):
    text = (repo_root / "docs/fpga-registers.md").read_text()
    for register in description.registers:
        assert f"`{register.name}`" in text
        for field in register.fields:
            assert f"`{field.name}`" in text


def test_field_extracts_its_bits():
    assert regs.GEOMETRY_COLUMNS.of(0xFFFF_F05F) == 5
    assert regs.STATUS_QUEUE_LEVEL.mask == 0xFF00


def _change(data: dict, name: str, values: dict) -> dict:
    changed = copy.deepcopy(data)
    entry = next(entry for entry in changed["register"] if entry["name"] == name)
    entry.update(values)
    return changed


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("STATUS", {"offset": 0x010}, "STATUS: offset 0x10"),
        ("STATUS", {"offset": 0x015}, "STATUS: offset 0x15"),
        ("WRITE_BEATS", {"offset": 0x1000}, "window ends before 0x1004"),
        ("STATUS", {"access": "rx"}, "STATUS: access 'rx'"),
        ("STATUS", {"name": "status"}, "register name 'status'"),
        ("CMD_X", {"words": 3}, "CMD_X: its size"),
        ("CMD_X", {"count": 2}, "CMD_S: offset"),
        ("ID", {"reset": 1}, "ID's reset value"),
        ("VERSION", {"reset": 1}, "VERSION's reset value"),
        ("ERROR_TAG", {"fields": [{"name": "A", "lsb": 30, "width": 3, "doc": ""}]}, "bits out of"),
        ("ERROR_TAG", {"fields": [{"name": "A", "lsb": 0, "width": 0, "doc": ""}]}, "bits out of"),
        (
            "ERROR_TAG",
            {
                "fields": [
                    {"name": n, "lsb": 2 * i, "width": 3, "doc": ""} for i, n in enumerate("AB")
                ]
            },
            "ERROR_TAG.B: bits out of",
        ),
    ],
)
def test_contradictions_are_refused(data, name, values, message):
    with pytest.raises(registers.DescriptionError, match=re.escape(message)):
        registers.parse_description(_change(data, name, values))
