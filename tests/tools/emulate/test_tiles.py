"""The emulated tile instructions, against NumPy; on processors that can run what is around them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.bfloat16 import tdpbf16ps, to_bfloat16
from tools.emulate_isa.tiles.command import SITE, library, refusal

# Reads x, codes and sums, multiplies them in every way of signs, and writes the sums.
PROGRAM = r"""
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static unsigned char in[3][1024] __attribute__((aligned(64))), out[1024], config[64];
int main(int count, char **argument) {
    int rows = atoi(argument[1]), depth = atoi(argument[2]);
    if (count != 3 || fread(in, 1, sizeof in, stdin) != sizeof in) return 2;
    config[0] = 1;
    config[16] = 64, config[48] = rows;
    config[18] = depth, config[49] = rows;
    config[20] = 64, config[50] = depth / 4;
    if (rows) _tile_loadconfig(config);
    for (int way = 0; way < 5; way++) {
        _tile_loadd(0, in[2], 64);
        _tile_loadd(1, in[0], depth);
        _tile_loadd(2, in[1], 64);
        if (way == 0) _tile_dpbssd(0, 1, 2);
        if (way == 1) _tile_dpbsud(0, 1, 2);
        if (way == 2) _tile_dpbusd(0, 1, 2);
        if (way == 3) _tile_dpbuud(0, 1, 2);
        if (way == 4) _tile_dpbf16ps(0, 1, 2);
        memset(out, 0, sizeof out);
        _tile_stored(0, out, 64);
        if (fwrite(out, 1, sizeof out, stdout) != sizeof out) return 3;
    }
    _tile_release();
    return 0;
}
"""
WAYS = [(np.int8, np.int8), (np.int8, np.uint8), (np.uint8, np.int8), (np.uint8, np.uint8)]

pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulator, and a program that multiplies tiles."""
    path = tmp_path_factory.mktemp("tiles")
    library(path)
    (path / "program.c").write_text(PROGRAM)
    flags = ["-O1", "-fno-strict-aliasing", "-mamx-tile", "-mamx-int8", "-mamx-bf16", "-mavx512f"]
    command = ["gcc", *flags, "-o", str(path / "program"), str(path / "program.c")]
    subprocess.run(command, check=True)
    return path


def run(
    folder: Path, rows: int, depth: int, data: NDArray[np.uint8]
) -> subprocess.CompletedProcess[bytes]:
    command = [str(folder / "program"), str(rows), str(depth)]
    environment = {"LD_PRELOAD": str(folder / "tiles.so")}
    return subprocess.run(command, input=data.tobytes(), env=environment, capture_output=True)


@pytest.mark.parametrize(("rows", "depth"), [(16, 64), (16, 32), (5, 16)])
def test_products_of_all_signs(rows: int, depth: int, folder: Path) -> None:
    data = np.random.default_rng(rows + depth).integers(0, 256, (3, 1024)).astype(np.uint8)
    done = run(folder, rows, depth, data)
    assert done.returncode == 0, done.stderr
    results = np.frombuffer(done.stdout, np.int32).reshape(5, 16, 16)[:4]
    x, codes = data[0, : rows * depth].reshape(rows, depth), data[1, : depth * 16]
    lines = codes.reshape(depth // 4, 16, 4).transpose(0, 2, 1).reshape(depth, 16)
    start = data[2].view(np.int32).reshape(16, 16)[:rows]
    for (left, right), sums in zip(WAYS, results, strict=True):
        products = x.view(left).astype(np.int64) @ lines.view(right).astype(np.int64)
        expected = (start + products).astype(np.int32)  # sums wrap around
        np.testing.assert_array_equal(sums[:rows], expected)
        assert not sums[rows:].any()


@pytest.mark.parametrize(("rows", "depth"), [(16, 64), (16, 32), (5, 16)])
def test_products_of_bfloat16(rows: int, depth: int, folder: Path) -> None:
    rng = np.random.default_rng(rows + depth)
    sizes = 2.0 ** rng.integers(-70, 40, (2, 512))  # many a product of them is subnormal
    x, codes = to_bfloat16((rng.standard_normal((2, 512)) * sizes).astype(np.float32))
    sums = rng.standard_normal((16, 16)).astype(np.float32)
    data = np.stack([part.view(np.uint8).reshape(1024) for part in (x, codes, sums)])
    done = run(folder, rows, depth, data)
    assert done.returncode == 0, done.stderr
    result = np.frombuffer(done.stdout, np.float32).reshape(5, 16, 16)[4]
    lines = codes[: depth // 4 * 32].reshape(depth // 4, 16, 2)
    expected = tdpbf16ps(sums[:rows], x[: rows * depth // 2].reshape(rows, depth // 2), lines)
    np.testing.assert_array_equal(result[:rows], expected)
    assert not result[rows:].any()


def test_what_the_processor_would_refuse_is_named(folder: Path) -> None:
    data = np.zeros((3, 1024), np.uint8)
    unset = run(folder, 0, 64, data)
    assert unset.returncode < 0
    assert b"a tile is used without a configuration" in unset.stderr
    tall = run(folder, 17, 64, data)
    assert tall.returncode < 0
    assert b"more than 16 rows" in tall.stderr


def test_every_process_says_that_it_has_tiles(folder: Path) -> None:
    code = "from edgerun.kernels.isa import obstacle; print(repr(obstacle('amx')))"
    environment = {
        "LD_PRELOAD": str(folder / "tiles.so"),
        "PYTHONPATH": f"{SITE}:{Path(__file__).parents[3]}",
        "EDGERUN_CACHE": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "''\n", done.stderr
