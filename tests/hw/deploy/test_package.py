"""Packages are complete, reproducible, and refused when anything in them was altered."""

import contextlib
import dataclasses
import json
import os
import random
import re
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from edgerun_hw.deploy import hardware, plan
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_hwh, sample_overlay
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.package import Sources, make_package, read_package, write_package
from edgerun_hw.deploy.plan import overlay_of
from edgerun_hw.overlay.register_map import VLNV
from tests.hw.deploy.harness import resealed

KV260 = BOARDS["kv260"]


def with_(sources: Sources, **changes: Any) -> Sources:
    return dataclasses.replace(sources, **changes)


def test_folder_holds_what_xmutil_expects_and_a_manifest(sources: Sources, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_package(make_package(sources), out)
    name = "edgerun-tlmm"
    files = {"manifest.json", f"{name}.bit.bin", f"{name}.dtbo", f"{name}.hwh", "shell.json"}
    assert {file.name for file in out.iterdir()} == files
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["clocks"] == {
        "pl0": {"source": "IOPLL", "divisors": [6, 1], "hertz": 249_997_500}
    }
    assert manifest["registers"]["base"] == 0xA000_0000
    assert json.loads((out / "shell.json").read_text())["shell_type"] == "XRT_FLAT"
    assert read_package(out).files == make_package(sources).files  # the same bytes every time


def flip(file: Path, generator: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    file.write_bytes(data)


def say_parameters(sources: Sources, parameters: str) -> None:
    """Has the .hwh say how the overlay was built: names and values in turn."""
    words_of = iter(parameters.split())
    elements = "".join(f'<PARAMETER NAME="{name}" VALUE="{next(words_of)}"/>' for name in words_of)
    file = sources.bitstream.with_suffix(".hwh")
    marker = f'VLNV="{VLNV}">'
    text = file.read_text()
    assert marker in text
    file.write_text(text.replace(marker, f"{marker}<PARAMETERS>{elements}</PARAMETERS>"))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("", "its .hwh does not say how it was built"),
        ("ATTENTION 2 PORTS 4 COLUMNS 5", "4 ports, 5 columns, attention unit of 2 queries"),
        (
            "ATTENTION 2 GLUE 1 PORTS 4 COLUMNS 5",
            "4 ports, 5 columns, attention unit of 2 queries, glue unit",
        ),
        (
            "ATTENTION 0 PORTS 4 COLUMNS 5",
            "4 ports, 5 columns, no attention unit, which board.toml asks for",
        ),
        ("ATTENTION two PORTS 4 COLUMNS 5", "its .hwh does not say how it was built"),
    ],
)
def test_a_package_says_how_its_overlay_was_built(
    sources: Sources, parameters: str, words: str
) -> None:
    say_parameters(sources, parameters)
    assert overlay_of(make_package(sources)) == words


@pytest.mark.parametrize("glue", ["", " GLUE 0"])
def test_a_package_says_that_it_lacks_the_glue_unit_that_its_board_asks_for(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, glue: str
) -> None:
    """Designs of older register maps do not name the parameter."""
    asking = dataclasses.replace(plan.load_board("kv260"), geometry="layer-1500")
    monkeypatch.setattr(plan, "load_board", lambda name: asking)
    say_parameters(sources, f"ATTENTION 2 PORTS 4 COLUMNS 5{glue}")
    assert overlay_of(make_package(sources)) == (
        "4 ports, 5 columns, attention unit of 2 queries, no glue unit, which board.toml asks for"
    )


@pytest.mark.parametrize(
    "count", [pytest.param(60, id="share"), pytest.param(500, id="all", marks=pytest.mark.slow)]
)
def test_altered_packages_are_refused(sources: Sources, tmp_path: Path, count: int) -> None:
    """One bit of one file, and for each package a bitstream altered before it was packaged."""
    generator, package = random.Random(count), make_package(sources)
    write_package(package, tmp_path / "out")
    names, bit = sorted(package.manifest.files), sources.bitstream.read_bytes()
    for number in range(count):
        name = names[0] if number % 2 else names[number // 2 % len(names)]
        file = tmp_path / "out" / name
        good = file.read_bytes()
        flip(file, generator)
        with pytest.raises(PackageError):
            read_package(tmp_path / "out")
        file.write_bytes(good)
        altered = bytearray(bit)
        at = generator.randrange(300, len(bit) - 40)
        altered[at] ^= 1 << generator.randrange(8)
        sources.bitstream.write_bytes(altered)
        with pytest.raises(PackageError):
            make_package(sources)
    sources.bitstream.write_bytes(bit)
    assert read_package(tmp_path / "out").files == make_package(sources).files


def test_bitstream_of_broken_words_is_refused(sources: Sources, tmp_path: Path) -> None:
    files = make_package(sources).files
    name = "edgerun-tlmm.bit.bin"
    for file, data in resealed(files, {name: files[name][:-1]}).items():
        (tmp_path / file).write_bytes(data)
    with pytest.raises(PackageError, match="not whole words"):
        read_package(tmp_path)


def test_altered_manifest_is_refused_on_signature_alone(sources: Sources, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    write_package(make_package(with_(sources, key=private)), tmp_path / "out")
    assert read_package(tmp_path / "out", public).is_signed
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("edgerun 0", "edgerun 1"))
    read_package(tmp_path / "out")  # well-formed, and right about its files
    with pytest.raises(PackageError, match="not signed by a key in"):
        read_package(tmp_path / "out", public)


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(65)])
def test_damaged_signature_is_said_before_anything_is_sent(
    sources: Sources, tmp_path: Path, signature: bytes
) -> None:
    write_package(make_package(sources), tmp_path / "out")
    (tmp_path / "out" / "manifest.json.sig").write_bytes(signature)
    with pytest.raises(PackageError, match="is no signature"):
        read_package(tmp_path / "out")


def test_unsigned_package_is_refused_where_a_signature_is_asked_for(
    sources: Sources, tmp_path: Path
) -> None:
    write_package(make_package(sources), tmp_path / "out")
    with pytest.raises(PackageError, match="is not signed"):
        read_package(tmp_path / "out", keys(tmp_path)[1])


def keys(folder: Path) -> tuple[Path, Path]:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private, public = folder / "key.pem", folder / "key.pub"
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"board": "kv26"}, "not known: there are kv260"),
        ({"board": "pynq-z2"}, "is for xck26-sfvc784, and TUL PYNQ-Z2 has xc7z020clg400"),
        ({"name": "../x"}, "is no name"),
        ({"name": "other"}, "firmware-name is edgerun-tlmm.bit.bin and must be other.bit.bin"),
        ({"base": 0x1000}, "registers cannot be at 0x1000: .* has its logic at 0x80000000 to"),
        ({"base": 0xA0000010}, "in steps of 0x1000"),
        ({"base": -5}, "cannot be at -0x5"),
        ({"overlay": Path("/nowhere.dtbo")}, "cannot be read"),
        ({"key": Path("/nowhere.pem")}, "cannot be read"),
    ],
)
def test_message_says_what_does_not_fit(sources: Sources, changes: dict, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        make_package(with_(sources, **changes))


def test_header_and_content_of_different_parts_are_refused(sources: Sources) -> None:
    sources.bitstream.write_bytes(example_bit(BOARDS["ultra96v2"], part="xck26-sfvc784-2LV-c"))
    with pytest.raises(PackageError, match="header and its content are of different parts"):
        make_package(sources)


def test_without_a_description_the_address_must_be_given(sources: Sources) -> None:
    sources.bitstream.with_suffix(".hwh").unlink()
    with pytest.raises(PackageError, match="--base"):
        make_package(sources)
    manifest = make_package(with_(sources, base=0xA000_0000)).manifest
    assert manifest.base == 0xA000_0000 and not manifest.clocks


def test_overlay_of_another_rate_than_the_design_is_refused(sources: Sources) -> None:
    """A design built for 100 MHz would silently run at 250."""
    overlay = sources.bitstream.with_suffix(".dtbo")
    overlay.write_bytes(sample_overlay(hertz=100_000_000))
    message = "sets clock pl0 to 100 MHz, and the design was built for 249.9975 MHz"
    with pytest.raises(PackageError, match=message):
        make_package(sources)


@pytest.mark.parametrize("megahertz", ["12.5", "450", "", "inf"])
def test_clock_outside_of_the_boards_bounds_is_refused(sources: Sources, megahertz: str) -> None:
    file = sources.bitstream.with_suffix(".hwh")
    text = file.read_text()
    assert text.count('VALUE="249.9975"') == 1
    file.write_text(text.replace('VALUE="249.9975"', f'VALUE="{megahertz}"'))
    message = "AMD Kria KV260 takes 25 MHz to 400 MHz" if megahertz[:1].isdigit() else "no number"
    with pytest.raises(PackageError, match=message):
        make_package(sources)


def test_without_a_description_no_overlay_is_written(sources: Sources) -> None:
    sources.bitstream.with_suffix(".hwh").unlink()
    with pytest.raises(PackageError, match="pass the .hwh of the same build"):
        make_package(with_(sources, overlay=None, base=0xA000_0000))


@pytest.mark.timeout(20)
def test_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(
    sources: Sources, tmp_path: Path
) -> None:
    package = make_package(sources)
    for name in package.files:
        folder = tmp_path / f"with {name}"
        write_package(package, folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(PackageError, match=r"no package|no signature|cannot be read|is not"):
            read_package(folder)
    os.mkfifo(tmp_path / "x.bit")
    with pytest.raises(PackageError, match="cannot be read"):
        make_package(with_(sources, bitstream=tmp_path / "x.bit"))


@pytest.mark.parametrize("shell", ["XRT_FLAT", "PL_FLAT"])
def test_both_kinds_of_flat_shell_are_taken(sources: Sources, tmp_path: Path, shell: str) -> None:
    file = tmp_path / "shell.json"
    file.write_text(json.dumps({"shell_type": shell, "num_slots": "1"}))
    files = make_package(with_(sources, shell=file)).files
    assert json.loads(files["shell.json"])["shell_type"] == shell


def archive(**files: bytes) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            out.writestr(name.replace("_", "."), data)
    return buffer.getvalue()


def test_xsa_gives_the_same_package_as_its_parts(sources: Sources, tmp_path: Path) -> None:
    xsa = tmp_path / "design.xsa"
    hwh = sources.bitstream.with_suffix(".hwh").read_bytes()
    xsa.write_bytes(archive(top_bit=sources.bitstream.read_bytes(), top_hwh=hwh))
    assert make_package(with_(sources, bitstream=xsa)).files == make_package(sources).files


def test_archives_that_are_none_or_unpack_to_too_much_are_refused(monkeypatch) -> None:
    good = archive(a_bit=b"x" * 5000)
    for broken in (
        b"",
        b"PK",
        good[: len(good) // 2],
        archive(a_txt=b""),
        archive(a_bit=b"", b_bit=b""),
    ):
        with pytest.raises(PackageError):
            hardware.read_xsa(broken)
    monkeypatch.setattr(hardware, "MAX_FILE_BYTES", 4999)
    with pytest.raises(PackageError, match="more than 4999 bytes"):
        hardware.read_xsa(good)


def test_damaged_archives_are_refused_or_read(sources: Sources) -> None:
    good, generator = archive(a_bit=example_bit(KV260), a_hwh=b"<x/>"), random.Random(1)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        with contextlib.suppress(PackageError):
            hardware.read_xsa(bytes(data))


HWH = """<EDKSYSTEM><MODULES><MODULE MODTYPE="{kind}"><PARAMETERS>{parameters}</PARAMETERS>
<MEMORYMAP><MEMRANGE INSTANCE="a" BASEVALUE="0x43C00000"/></MEMORYMAP></MODULE>
<MODULE INSTANCE="a" VLNV="edgerun:ip:tlmm:1.0"/></MODULES></EDKSYSTEM>"""


def hwh(kind: str, **parameters: object) -> bytes:
    lines = (f'<PARAMETER NAME="{name}" VALUE="{value}"/>' for name, value in parameters.items())
    return HWH.format(kind=kind, parameters="".join(lines)).encode()


def test_clocks_and_ports_of_a_zynq_7000_design() -> None:
    content = hwh(
        "processing_system7",
        PCW_FPGA_FCLK0_ENABLE=1,
        PCW_FCLK0_PERIPHERAL_DIVISOR0=5,
        PCW_FCLK0_PERIPHERAL_DIVISOR1=2,
        PCW_FCLK0_PERIPHERAL_CLKSRC="IO PLL",
        PCW_ACT_FPGA0_PERIPHERAL_FREQMHZ="99.999998",
        PCW_FPGA_FCLK1_ENABLE=0,
        PCW_USE_S_AXI_HP0=1,
        C_S_AXI_HP0_DATA_WIDTH=64,
        C_S_AXI_HP1_DATA_WIDTH=64,
    )
    design = hardware.read_hwh(content, "zynq7")
    assert design.base == 0x43C0_0000
    assert design.clocks == {"pl0": {"source": "IO", "divisors": [5, 2], "hertz": 99_999_998}}
    assert design.port_widths == {"S_AXI_HP0": 64}


def test_ports_of_a_zynq_ultrascale_design() -> None:
    values = {"C_SAXIGP2_DATA_WIDTH": 128, "PSU__USE__S_AXI_GP2": 1, "C_MAXIGP0_DATA_WIDTH": 32}
    values |= {"PSU__USE__M_AXI_GP0": 1, "C_SAXIGP3_DATA_WIDTH": 128, "PSU__USE__S_AXI_GP3": 0}
    design = hardware.read_hwh(hwh("zynq_ultra_ps_e", **values), "zynqmp")
    assert design.port_widths == {"S_AXI_HP0_FPD": 128, "M_AXI_HPM0_FPD": 32}


@pytest.mark.parametrize("board", BOARDS)
def test_description_that_lacks_a_parameter_of_its_clock_is_refused(board: str) -> None:
    content, family = sample_hwh(board), BOARDS[board].family
    for name in re.findall(rb'NAME="([^"]*(?:DIVISOR1|SRCSEL|FREQMHZ))"', content):
        with pytest.raises(PackageError, match=f"lacks the processing system's {name.decode()}$"):
            hardware.read_hwh(content.replace(name, b"X"), family)


ENTITY = '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<x", "broken"),
        (b"<x/>", "no processing system"),
        (ENTITY.encode(), "declares entities"),
        (ENTITY.encode("utf-16"), "not in UTF-8"),
        (ENTITY.encode("utf-16-le"), "not in UTF-8"),
        (ENTITY.encode("utf-16-be"), "not in UTF-8"),
        (b"<x>\xe9</x>", "not in UTF-8"),
        (hwh("processing_system7"), "which the board has not"),
        (
            hwh("zynq_ultra_ps_e", **{"C_SAXIGP2_DATA_WIDTH": "x", "PSU__USE__S_AXI_GP2": 1}),
            "number",
        ),
    ],
)
def test_unusable_description_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        hardware.read_hwh(content, "zynqmp")
