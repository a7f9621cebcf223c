"""``edgerun fpga doctor``: what is here, what is missing, and what to do about it."""

import json

import pytest

from edgerun_hw.check import diagnosis
from edgerun_hw.deploy.broker.board.loader import OVERLAYS
from edgerun_hw.deploy.broker.board.settings import rate_file


def board_root(root, *, compatible="xlnx,zynqmp-sk-kv260-rev1", state="operating", cma=1 << 20):
    """A file system as a board shows it."""
    files = {
        "proc/device-tree/model": "KV260 rev1\0",
        "proc/device-tree/compatible": f"{compatible}\0xlnx,zynqmp\0",
        "proc/meminfo": f"MemTotal: 4000000 kB\nCmaTotal:       {cma} kB\n",
        "sys/class/fpga_manager/fpga0/state": f"{state}\n",
        "sys/class/fpga_manager/fpga0/firmware": "",
        "dev/mem": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def finding(root, what):
    return next(item for item in diagnosis.diagnose(root) if item.what == what)


def test_doctor_recognises_a_board(tmp_path):
    root = board_root(tmp_path)
    assert "kv260 (xck26-sfvc784-2LV-c)" in finding(root, "model").observed
    assert finding(root, "FPGA manager").state == "ready"
    assert finding(root, "applications").state == "missing"
    (root / "lib/firmware/xilinx/edgerun-tlmm").mkdir(parents=True)
    assert finding(root, "applications").observed == "edgerun-tlmm"


def test_doctor_names_what_a_board_lacks(tmp_path):
    root = board_root(tmp_path, compatible="acme,toaster", state="write error", cma=63 * 1024)
    assert finding(root, "model").state == "missing"
    assert finding(root, "FPGA manager").state == "broken"
    memory = finding(root, "contiguous memory")
    assert memory.state == "missing" and "boot with cma=64M for" in memory.advice


@pytest.mark.parametrize("carrier", ["xlnx,zynqmp-sk-kr260-revB", "xlnx,zynqmp-smk-k26-revB"])
def test_doctor_takes_no_other_carrier_for_a_board(tmp_path, carrier):
    item = finding(board_root(tmp_path, compatible=carrier), "model")
    assert item.state == "missing" and "/etc/edgerun/fpga.json" in item.advice


def test_doctor_names_overlays_that_may_hold_the_region(tmp_path):
    root = board_root(tmp_path)
    assert finding(root, "overlays").observed == "none"
    for name in ("pynq", "edgerun-tlmm_image_0"):
        (root / OVERLAYS / name).mkdir(parents=True)
    assert finding(root, "overlays").state == "ready"
    (root / OVERLAYS / "full").mkdir()
    item = finding(root, "overlays")
    assert item.state == "broken" and item.advice.startswith("full may hold")
    assert "fpgautil -R" in item.advice and "pynq" in item.observed


def test_doctor_reads_the_clock(tmp_path):
    root = board_root(tmp_path)
    item = finding(root, "clock pl0")
    assert item.state == "missing" and "mount debugfs" in item.advice
    file = root / rate_file("zynqmp", "pl0")
    file.parent.mkdir(parents=True)
    file.write_text("99999999\n")
    assert finding(root, "clock pl0").observed == "99.999999 MHz"


def test_doctor_looks_for_the_memory_of_the_native_host(tmp_path):
    root = board_root(tmp_path)
    assert finding(root, "u-dma-buf").state == "missing"
    assert "insmod u-dma-buf.ko" in finding(root, "u-dma-buf").advice
    folder = root / "sys/class/u-dma-buf/udmabuf0"
    folder.mkdir(parents=True)
    (folder / "size").write_text(f"{64 << 20}\n")
    item = finding(root, "udmabuf0")
    assert (item.state, item.observed) == ("ready", "64 MiB")
    (folder / "dma_coherent").write_text("1\n")
    assert finding(root, "udmabuf0").state == "broken"


def test_doctor_looks_for_what_pynq_allocates_through(tmp_path):
    root = board_root(tmp_path)
    assert finding(root, "zocl").state == finding(root, "XRT").state == "missing"
    (root / "sys/module/zocl").mkdir(parents=True)
    library = root / "usr/lib/aarch64-linux-gnu/libxrt_core.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    assert finding(root, "zocl").state == "ready"
    assert finding(root, "XRT").observed == "/usr/lib/aarch64-linux-gnu/libxrt_core.so.2"


def test_doctor_names_the_image_that_bringing_up_is_about(tmp_path):
    root = board_root(tmp_path)
    assert finding(root, "system").observed == "unknown"
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n')
    item = finding(root, "system")
    assert item.observed == "Ubuntu 22.04.4 LTS" and "Kria-PYNQ 3.0.1" in item.advice


def test_doctor_says_whose_processors_cannot_run_edgerun(tmp_path):
    item = finding(board_root(tmp_path / "z2", compatible="tul,pynq-z2"), "processors")
    assert "ARMv7" in item.advice and "--device pynq-remote" in item.advice
    whats = {item.what for item in diagnosis.diagnose(board_root(tmp_path / "kv260"))}
    assert "processors" not in whats


def test_doctor_computes_contiguous_memory_from_the_bundle(tmp_path, run, repo_root):
    bundle = repo_root / "models/small/bundle"
    enough = finding(board_root(tmp_path / "enough", cma=64 * 1024), "contiguous memory")
    assert enough.state == "ready" and enough.observed == "64 MiB"
    assert "contiguous memory" not in run("doctor")[1]
    out = run("doctor", "--model", bundle)[1]
    assert f"cma=64M for {bundle.name} with attention-1500" in out
    assert "of the head's screen" in out and "keys and values of 512 tokens" in out
    assert "keys and values of 64 tokens" in run("doctor", "--model", bundle, "--context", 64)[1]
    code, _, err = run("doctor", "--model", tmp_path / "nothing")
    assert code == 2 and "nothing" in err


def test_doctor_without_a_board_says_what_to_use_instead(tmp_path):
    item = finding(tmp_path, "programmable logic")
    assert item.state == "not needed here" and "cosim" in item.advice


def test_every_missing_thing_comes_with_advice(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    items = diagnosis.diagnose(board_root(tmp_path / "root", compatible="acme,toaster"))
    assert all(item.advice for item in items if item.state in ("missing", "broken"))
    assert any(item.what == "C++ compiler" and item.state == "missing" for item in items)


def test_broken_pynq_environment_is_quoted(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "ImportError: numpy 2 is too new" >&2\nexit 1\n')
    python.chmod(0o755)
    settings = type("Settings", (), {"pynq_python": python})
    monkeypatch.setattr(diagnosis.env, "settings", settings)
    item = finding(tmp_path, "environment")
    assert item.state == "broken" and "numpy 2 is too new" in item.advice


def test_doctor_prints_a_table_or_json(run):
    code, out, _ = run("doctor")
    assert code == 0 and out.splitlines()[0].startswith("part\twhat\tstate")
    code, out, _ = run("doctor", "--json")
    assert {"tools", "devices"} <= {item["part"] for item in json.loads(out)}
    assert {tuple(item) for item in json.loads(out)} == {
        ("part", "what", "state", "observed", "advice")
    }
