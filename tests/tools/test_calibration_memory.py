"""The tool that measures calibration runs, and threads change no byte of what it fits."""

from __future__ import annotations

import re

import pytest

from tools import calibration_memory

SMALL = ["--hidden", "128", "--intermediate", "96", "--windows", "2"]


def test_fits_the_same_layer_with_any_number_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    calibration_memory.main(SMALL)
    calibration_memory.main([*SMALL, "--threads", "2"])
    lines = capsys.readouterr().out.splitlines()
    digests = [re.search(r"down projection (\w{12})", line) for line in lines]
    assert digests[0] and digests[1] and digests[0].group(1) == digests[1].group(1)
