"""The environment is read in one place and checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgerun.env import read_settings
from edgerun.errors import InputError
from edgerun.values import whole_number


def test_without_variables_everything_has_a_default() -> None:
    settings = read_settings({})
    assert (settings.debug, settings.validate, settings.backend, settings.threads) == (
        0,
        False,
        None,
        None,
    )
    assert settings.cache_dir.name == "edgerun"


def test_variables_are_read() -> None:
    settings = read_settings(
        {
            "EDGERUN_DEBUG": "3",
            "EDGERUN_VALIDATE": "1",
            "EDGERUN_BACKEND": " cpu ",
            "EDGERUN_ISA": "avx2",
            "EDGERUN_CACHE": "~/here",
            "EDGERUN_THREADS": "4",
        }
    )
    assert (settings.debug, settings.validate, settings.backend) == (3, True, "cpu")
    assert (settings.isa, settings.threads) == ("avx2", 4)
    assert settings.cache_dir == Path("~/here").expanduser()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EDGERUN_DEBUG", "5"),
        ("EDGERUN_DEBUG", "-1"),
        ("EDGERUN_DEBUG", "much"),
        ("EDGERUN_THREADS", "0"),
        ("EDGERUN_THREADS", "9" * 5000),
        ("EDGERUN_THREADS", "٣"),
        ("EDGERUN_VALIDATE", "maybe"),
        ("EDGERUN_CACHE", "a\0b"),
        ("EDGERUN_CACHE", "~nobody-of-this-name/cache"),
        ("EDGERUN_PYNQ_PYTHON", "~nobody-of-this-name/python"),
        ("EDGERUN_PYNQ_PYTHON", "/no/such/python"),
        ("EDGERUN_PYNQ_PYTHON", "/"),
        ("EDGERUN_PYNQ_PYTHON", "a\0b"),
    ],
)
def test_what_a_variable_cannot_mean_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(InputError, match=name):
        read_settings({name: value})


def test_devices_are_named_by_back_end() -> None:
    settings = read_settings(
        {"EDGERUN_FPGA_DEVICE": " cosim ", "EDGERUN_X_DEVICE": "", "OTHER": "1"}
    )
    assert settings.devices == {"fpga": "cosim"}


def test_interpreter_is_a_path_to_a_program() -> None:
    settings = read_settings({"EDGERUN_PYNQ_PYTHON": f" {sys.executable} "})
    assert settings.pynq_python == Path(sys.executable)
    assert read_settings({}).pynq_python is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_digits_spell_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", " 1", "+1", "-1", "1_0", "²", "٣", "9" * 19, "9" * 5000])
def test_other_text_spells_none(text: str) -> None:
    assert whole_number(text) is None
