"""What identifies the processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgerun.kernels import isa as isa_module
from edgerun.kernels.host.processor import identity
from edgerun.kernels.isa import host_features
from edgerun.kernels.jit.loader import host
from edgerun.kernels.lang.dot import X86

LINUX_X86 = X86 and sys.platform.startswith("linux")


@pytest.mark.skipif(not LINUX_X86, reason="asked with cpuid, on Linux")
def test_identity_is_the_same_on_every_core() -> None:
    code = "from edgerun.kernels.host.processor import identity; print(identity().hex())"
    found = set()
    for core in sorted(os.sched_getaffinity(0))[:4]:
        pinned = f"import os; os.sched_setaffinity(0, [{core}]); {code}"
        done = subprocess.run(
            [sys.executable, "-c", pinned], capture_output=True, text=True, check=True
        )
        found.add(done.stdout.strip())
    known = identity()
    assert known is not None
    assert found == {known.hex()}


@pytest.mark.skipif(not LINUX_X86, reason="asked with cpuid, on Linux")
def test_identity_names_the_vendor() -> None:
    known = identity()
    assert known is not None
    vendor = known[4:8] + known[12:16] + known[8:12]  # registers b, d and c
    with open("/proc/cpuinfo") as lines:
        told = next(line for line in lines if line.startswith("vendor_id"))
    assert vendor.decode() == told.split(":")[1].strip()


def test_other_systems_are_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    identity.cache_clear()
    try:
        assert identity() is None
    finally:
        identity.cache_clear()


def test_remembered_features_are_llvms(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = host()[2].split(",")
    expected = {flag[1:] for flag in flags if flag.startswith("+")}
    assert host_features() == expected
    monkeypatch.setattr(isa_module, "identity", lambda: None)
    host_features.cache_clear()
    try:
        assert host_features() == expected
    finally:
        host_features.cache_clear()
