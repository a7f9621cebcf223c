"""What needs a GPU or an NPU of Intel's; nobody has run it on one yet."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends.openvino.devices import DEVICES
from edgerun.state import Batch
from tests.backends.openvino.conftest import placed
from tests.backends.openvino.test_places import ids_of
from tests.support.bundles import bundle_of, error_of

pytest.importorskip("openvino")

PLACES = [
    pytest.param("GPU", "prefill", marks=pytest.mark.igpu),
    pytest.param("GPU", "decode", marks=pytest.mark.igpu),
    pytest.param("NPU", "prefill", marks=pytest.mark.npu),
]


@pytest.mark.parametrize(("name", "weights"), [("llama", "int4"), ("bitnet-packed", "ternary")])
@pytest.mark.parametrize(("device", "part"), PLACES)
def test_a_device_computes_what_the_cpu_does(
    device: str, part: str, name: str, weights: str
) -> None:
    support = DEVICES[device].probe()
    if not support:
        pytest.skip(support.reason)
    folder, ids, found = bundle_of(name, weights=weights), ids_of(name, 96), []
    for place in ("prefill=cpu", f"{part}=openvino:{device}"):
        with placed(
            folder, place, required=None if place == "prefill=cpu" else f"openvino:{device}"
        ) as model:
            store = model.store()
            slot = store.open()
            model.run(store, Batch.of(ids[:64], 0, slot, logits="none"))
            steps = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(64, 96)]
            found.append(np.concatenate(steps))
    assert error_of(found[1], found[0]) <= 5e-2
