"""What needs a GPU or an NPU of Intel's, which nobody has run it on yet.

The same is done here with the processor in their place, so that it does something when somebody
has one: ``python -m tools.measure_device NPU`` runs it there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import edgerun
from edgerun.backends.openvino import compile_process, devices
from edgerun.backends.openvino.devices import DEVICES
from edgerun.backends.openvino.session import Session
from edgerun.state import Batch
from tests.backends.openvino.conftest import placed
from tests.backends.openvino.test_places import ids_of
from tests.support.bundles import bundle_of, error_of
from tests.support.machines import EVERYTHING, INTEL, Pretend

pytest.importorskip("openvino")

# What half precision may cost, and activations that a runtime rounds in its own way.
LOGITS = 5e-2  # of their range
KEYS_AND_VALUES = 1e-1  # of the largest
PLACES = [
    pytest.param("GPU", "prefill", marks=pytest.mark.igpu),
    pytest.param("GPU", "decode", marks=pytest.mark.igpu),
    pytest.param("NPU", "prefill", marks=pytest.mark.npu),
    ("CPU", "prefill"),
    ("CPU", "decode"),
    ("NPUW-CPU", "prefill"),
]
# What a child process does before it compiles for a GPU that is the processor.
AS_GPU = """
import sys
sys.path[:] = sys.argv[1:]
from dataclasses import replace
from edgerun.backends.openvino import devices
gpu = replace(devices.DEVICES["GPU"], plugin="CPU")
devices.DEVICES = {**devices.DEVICES, "GPU": gpu}
"""
MODELS = [
    ("llama", {"weights": "int4", "activations": "fp32"}),
    ("qwen3", {"weights": "int8", "activations": "fp32"}),
    ("bitnet-packed", {"weights": "ternary"}),
]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device; skips where it is not here."""
    support = DEVICES[request.param].probe()
    if not support:
        pytest.skip(support.reason)
    return str(request.param)


@pytest.mark.parametrize(("name", "options"), MODELS)
@pytest.mark.parametrize(("device", "part"), PLACES, indirect=["device"])
def test_a_device_computes_what_the_cpu_does(
    device: str, part: str, name: str, options: dict[str, str]
) -> None:
    """Keys and values of a prompt, and logits of what follows it, whoever computes them."""
    folder, ids = bundle_of(name, **options), ids_of(name, 96)
    computed = []
    for place in ("prefill=cpu", f"{part}=openvino:{device}"):
        required = None if place == "prefill=cpu" else f"openvino:{device}"
        with placed(folder, place, required=required) as model:
            store = model.store()
            slot = store.open()
            model.run(store, Batch.of(ids[:64], 0, slot, logits="none"))
            steps = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(64, 96)]
            blocks = [store.read_block(state.name, slot, 0, 96) for state in store.states]
            computed.append((np.concatenate(steps), [part for block in blocks for part in block]))
            calls = model.calls()
    (right, cpu_block), (logits, block) = computed
    assert calls == (1 if part == "prefill" else 32)
    assert error_of(logits, right) <= LOGITS
    for ours, theirs in zip(block, cpu_block, strict=True):
        assert np.abs(ours - theirs).max() <= KEYS_AND_VALUES * np.abs(theirs).max()


@pytest.mark.parametrize(("device", "part"), PLACES, indirect=["device"])
def test_a_reply_is_computed_there_and_again_from_what_was_kept(device: str, part: str) -> None:
    """Through the whole program, twice: compiled, then loaded from disk."""
    folder, prompt = bundle_of("llama", weights="int4"), ids_of("llama")
    place, replies, seconds = f"{part}=openvino:{device}", [], []
    for _ in range(2):
        with edgerun.load(folder, place=place, require=f"openvino:{device}", threads=1) as llm:
            replies.append(llm.generate(prompt, temperature=0, max_tokens=16, ignore_eos=True).ids)
            (report,) = llm.reports()
            seconds.append(sum(row["ready in s"] for row in report.rows))
            assert report.title.startswith(f"openvino:{device}, ") and not report.notes
            assert sum(row["calls"] for row in report.rows) == (1 if part == "prefill" else 16)
    assert replies[0] == replies[1] and len(replies[0]) == 16
    assert seconds[1] < 60  # nothing is compiled for minutes again


@pytest.mark.parametrize("name", ["NPU", "GPU"])
def test_all_of_a_devices_way_but_for_the_device(
    name: str, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights, its child process, its blobs: only options send the work to the processor."""
    pretend(*EVERYTHING, vendors=[INTEL], accelerators=1)
    stand_in, same = {
        "NPU": (DEVICES["NPUW-CPU"], "prefill=openvino:NPUW-CPU"),
        "GPU": (DEVICES["CPU"], "prefill=cpu"),
    }[name]
    device = replace(DEVICES[name], configurations=stand_in.configurations, plugin=stand_in.plugin)
    assert device.compiles_in_child and device.caveat
    monkeypatch.setattr(devices, "DEVICES", {**DEVICES, name: device})
    monkeypatch.setattr(Session, "check_device", lambda session: None)
    if name == "GPU":  # a child process has the real table, which would name the plug-in for GPUs
        monkeypatch.setattr(compile_process, "CHILD", AS_GPU + compile_process.CHILD)
    folder, prompt = bundle_of("qwen3", weights="int8", activations="fp32"), ids_of("qwen3")
    replies = []
    for place in (same, *[f"prefill=openvino:{name}"] * 2):
        with edgerun.load(folder, place=place, threads=1) as llm:
            replies.append(llm.generate(prompt, temperature=0, max_tokens=16, ignore_eos=True).ids)
            reports = llm.reports()
    assert replies[0] == replies[1] == replies[2]
    (report,) = reports
    assert report.title.startswith(f"openvino:{name}, ") and "never tried on one" in report.title
