"""Writes the hardware description that pynq reads, for the simulated overlay.

A bitstream's own .hwh comes from Vivado, with the same names (``hw/boards/common.tcl``) and
hundreds of parameters more. This one has what pynq looks at: the processing system with its clocks
and the port to the registers, the overlay's registers, and where they are.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from edgerun_hw.registers.description import Description, Field, Register

DESIGN = "tlmm_system"
PROCESSOR = "ps"
PROCESSOR_VLNV = "xilinx.com:ip:zynq_ultra_ps_e:3.5"
CONTROL_PORT = "M_AXI_HPM0_FPD"
CONTROL_INTERFACE = "s_axi_control"
# As on the KV260 (hw/boards/kv260/board.toml).
CONTROL_ADDRESS = 0xA000_0000
AXI_VLNV = "xilinx.com:interface:aximm:1.0"
# Divisors of the four logic clocks from a 1500 MHz PLL, and whether they run. pynq refuses a
# description in which one of them is missing, used or not.
PLL_MHZ = 33.333 * 45
CLOCKS = ((6, 1, True), (15, 1, False), (15, 1, False), (15, 1, False))
ACCESS = {"ro": "read-only", "rw": "read-write", "rw1c": "read-write", "wo": "write-only"}


def write_hwh(description: Description) -> str:
    """Returns the hardware description as XML."""
    root = ET.Element("EDKSYSTEM", {"EDWVERSION": "1.2"})
    root.append(ET.Comment(" Made from registers.toml; do not edit. "))
    ET.SubElement(root, "SYSTEMINFO", {"ARCH": "zynquplus", "DEVICE": "xck26", "NAME": DESIGN})
    ET.SubElement(root, "EXTERNALPORTS")
    ET.SubElement(root, "EXTERNALINTERFACES")
    modules = ET.SubElement(root, "MODULES")
    _add_processor(modules, description)
    _add_overlay(modules, description)
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode") + "\n"


def _add_module(modules: ET.Element, name: str, vlnv: str, is_logic: bool) -> ET.Element:
    _, _, kind, version = vlnv.split(":")
    attributes = {
        "FULLNAME": f"/{name}",
        "HWVERSION": version,
        "INSTANCE": name,
        "IPTYPE": "PERIPHERAL",
        "IS_ENABLE": "1",
        "IS_PL": str(is_logic).upper(),
        "MODTYPE": kind,
        "VLNV": vlnv,
    }
    return ET.SubElement(modules, "MODULE", attributes)


def _add_processor(modules: ET.Element, description: Description) -> None:
    module = _add_module(modules, PROCESSOR, PROCESSOR_VLNV, is_logic=False)
    parameters = ET.SubElement(module, "PARAMETERS")
    for i, (divisor0, divisor1, enabled) in enumerate(CLOCKS):
        clock = f"PSU__CRL_APB__PL{i}_REF_CTRL"
        values = {
            f"PSU__FPGA_PL{i}_ENABLE": int(enabled),
            f"{clock}__DIVISOR0": divisor0,
            f"{clock}__DIVISOR1": divisor1,
            f"{clock}__SRCSEL": "IOPLL",
            f"{clock}__ACT_FREQMHZ": round(PLL_MHZ / divisor0 / divisor1, 6),
        }
        for name, value in values.items():
            ET.SubElement(parameters, "PARAMETER", {"NAME": name, "VALUE": str(value)})
    _add_bus(module, CONTROL_PORT, "MASTER")
    last = CONTROL_ADDRESS + description.window_bytes - 1
    window = {
        "ADDRESSBLOCK": "reg0",
        "BASEVALUE": f"0x{CONTROL_ADDRESS:X}",
        "HIGHVALUE": f"0x{last:X}",
        "INSTANCE": description.name,
        "MASTERBUSINTERFACE": CONTROL_PORT,
        "MEMTYPE": "REGISTER",
        "SLAVEBUSINTERFACE": CONTROL_INTERFACE,
    }
    ET.SubElement(ET.SubElement(module, "MEMORYMAP"), "MEMRANGE", window)


def _add_overlay(modules: ET.Element, description: Description) -> None:
    module = _add_module(modules, description.name, description.vlnv, is_logic=True)
    block = ET.SubElement(
        ET.SubElement(module, "ADDRESSBLOCKS"),
        "ADDRESSBLOCK",
        {
            "ACCESS": "read-write",
            "INTERFACE": CONTROL_INTERFACE,
            "NAME": "reg0",
            "RANGE": str(description.window_bytes),
            "USAGE": "register",
        },
    )
    registers = ET.SubElement(block, "REGISTERS")
    for register in description.registers:
        for name, offset in register.words_by_name():
            _add_register(registers, register, name, offset)
    ET.SubElement(module, "PARAMETERS")
    _add_bus(module, CONTROL_INTERFACE, "SLAVE")


def _add_register(registers: ET.Element, register: Register, name: str, offset: int) -> None:
    element = ET.SubElement(registers, "REGISTER", {"NAME": name})
    _add_properties(
        element,
        DESCRIPTION=register.doc,
        ADDRESS_OFFSET=f"0x{offset:X}",
        SIZE="32",
        ACCESS=ACCESS[register.access],
        IS_ENABLED="true",
        RESET_VALUE=f"0x{register.reset or 0:X}",
    )
    if register.fields:
        fields = ET.SubElement(element, "FIELDS")
        for field in register.fields:
            _add_field(fields, register, field)


def _add_field(fields: ET.Element, register: Register, field: Field) -> None:
    _add_properties(
        ET.SubElement(fields, "FIELD", {"NAME": field.name}),
        DESCRIPTION=field.doc,
        ACCESS=ACCESS[register.access],
        BIT_OFFSET=str(field.lsb),
        BIT_WIDTH=str(field.width),
    )


def _add_properties(element: ET.Element, **properties: str) -> None:
    for name, value in properties.items():
        ET.SubElement(element, "PROPERTY", {"NAME": name, "VALUE": value})


def _add_bus(module: ET.Element, name: str, kind: str) -> None:
    buses = ET.SubElement(module, "BUSINTERFACES")
    ET.SubElement(buses, "BUSINTERFACE", {"NAME": name, "TYPE": kind, "VLNV": AXI_VLNV})
