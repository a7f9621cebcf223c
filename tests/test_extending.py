"""A package adds one file of each kind, and nothing else has to change.

The files lie in tests/support/toys as another package would install them, in folders that are
called like ours. They are used for what they are: exported with, planned, run, and compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgerun.discovery import ADDED
from tests.support.bundles import GOLDEN

TOYS = Path(__file__).parent / "support" / "toys"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> dict[str, Any]:
    """What came of using the toys, all in one process that finds them on its path."""
    folder = tmp_path_factory.mktemp("extending")
    shutil.copytree(TOYS, folder / "site" / ADDED, ignore=shutil.ignore_patterns("__pycache__"))
    checkpoint = Path(shutil.copytree(GOLDEN / "llama", folder / "checkpoint"))
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    config |= {"model_type": "toylm", "architectures": ["ToyForCausalLM"]}
    config |= {"width": config.pop("hidden_size"), "depth": config.pop("num_hidden_layers")}
    (checkpoint / "config.json").write_text(json.dumps(config), "utf-8")
    paths = [folder / "site", repo_root, repo_root / "export", repo_root / "hw"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.extending", str(checkpoint), str(folder)],
        capture_output=True,
        text=True,
        cwd=repo_root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def test_the_toys_are_nothing_but_one_file_each() -> None:
    """A second file beside one of these would be the second place that had to change."""
    files = sorted(str(path.relative_to(TOYS)) for path in TOYS.rglob("*.py"))
    assert files == [
        "activations/gelu.py",
        "backends/cpu/emit/double.py",
        "backends/normer.py",
        "engine/drafting/echo.py",
        "engine/sampling/top_n_sigma.py",
        "export/architectures/toylm.py",
        "export/quantize/absmax.py",
        "export/transforms/flip.py",
        "formats/int4s.py",
        "graph/passes/decay.py",
        "graph/passes/double.py",
        "kernels/pointwise/double.py",
        "model/chat/calls/arrow.py",
        "offload/policies/mru.py",
        "ops/decay.py",
        "ops/double.py",
        "state/codecs/bf16.py",
        "state/policies/mru.py",
    ]


def test_an_architecture(used: dict[str, Any]) -> None:
    assert used["architecture"]["name"] == "toylm"
    assert used["architecture"]["error"] < 1e-4


def test_a_transform_of_weights(used: dict[str, Any]) -> None:
    assert list(used["transform"]["transforms"]) == ["flip"]
    assert used["transform"]["error"] < 1e-5


def test_a_weight_format_and_a_quantisation_method(used: dict[str, Any]) -> None:
    report = used["weights"]
    assert report["recipe"]["weights"] == "int4s"
    assert (report["recipe"]["method"], report["recipe"]["group_size"]) == ("absmax", 64)
    assert report["equal"]
    assert report["matrices"] == 14
    assert report["range"] == [-7, 7]
    assert "int8_offset, ternary, int4s, fp32, or source" in " ".join(report["help"].split())
    assert "residual, rtn, ternary, absmax." in " ".join(report["help"].split())


def test_a_back_end(used: dict[str, Any]) -> None:
    report = used["backend"]
    assert "normer" in report["names"]
    assert sorted(report["normer"]) == ["cpu", "normer"]
    assert report["reference"] == ["reference"]
    assert report["normer ids"] == report["reference ids"]
    assert report["error"] < 1e-4


def test_the_documented_processor_is_the_one_used_here(repo_root: Path) -> None:
    document = (repo_root / "docs" / "contributing.md").read_text("utf-8")
    toy = (TOYS / "engine" / "sampling" / "top_n_sigma.py").read_text("utf-8")
    assert f"```python\n{toy}```\n" in document


def test_a_sampling_processor(used: dict[str, Any]) -> None:
    report = used["sampler"]
    assert report["narrow"] == report["greedy"] != report["off"]
    assert report["wide"] == report["off"]
    assert report["refusal"] == "top_n_sigma is 101; expected a number from 0 to 100"
    assert report["misspelt"].endswith("did you mean 'top_n_sigma'?")
    assert "--top-n-sigma X" in report["help"]
    assert "| `top_n_sigma` | `0.0` | Keep what is so many deviations down. |" in report["table"]
    assert "    top_n_sigma: float\n" in report["keywords"]


def test_a_codec_of_keys_and_values(used: dict[str, Any]) -> None:
    report = used["codec"]
    assert 0 < report["error"] < 0.01
    assert report["bf16"] == report["fp32"]
    assert "bf16" in report["refusal"]


def test_a_drafter(used: dict[str, Any]) -> None:
    (plain, none), (drafted, some) = used["drafter"]["none"], used["drafter"]["echo"]
    assert (drafted, none) == (plain, 0)
    assert some > 0
    assert used["drafter"]["refusal"] == "draft is 'x'; expected one of auto, lookup, echo, none"


def test_an_eviction_policy(used: dict[str, Any]) -> None:
    policy = used["policy"]
    assert policy["lru"] == [False, True]  # the first prompt went, the second is still there
    assert policy["mru"] == [True, False]
    assert policy["refusal"] == "eviction is 'fifo'; expected one of lfu, lru, mru"


def test_a_policy_for_caches_of_experts(used: dict[str, Any]) -> None:
    assert used["experts"] == {"lru": [1], "mru": [2]}


def test_a_form_of_calls(used: dict[str, Any]) -> None:
    """Nothing but the model's chat template says which form it has."""
    report = used["calls"]
    assert report["form"] == "arrow"
    assert report["f"] == ["So:", [["f", '{"x": 1}']]]
    assert report["g"] == ['So: => g {"x": 1}', []]


def test_an_op(used: dict[str, Any]) -> None:
    """The op, the form that makes it, what runs it, and the kernel: a file each."""
    report = used["op"]
    assert report["ops"] == 1
    assert report["wrong"] == []
    assert report["error"] < 1e-4
    assert report["ratio"] < 1e-5
    assert "node 'twice' is 'Mul with mystery=1'" in report["refusal"]


def test_an_op_with_a_state_of_fixed_size(used: dict[str, Any]) -> None:
    """Alone, beside others, without its pages, after a prompt that goes on otherwise: same ids."""
    ids = used["recurrent"]
    assert ids["states"] == ["RecurrentState", "AttentionState", "AttentionState"]
    assert ids["formula"] < 1e-6
    assert max(ids["chunks"]) < 1e-4 * ids["effect"]  # a BLAS adds up single rows otherwise
    assert ids["effect"] > 0.01
    assert ids["together"] == ids["alone"]
    assert ids["preempted"] == ids["alone"]
    assert ids["calls"] > ids["calls with memory"]
    assert ids["next turn"] == ids["next turn alone"]
    assert ids["reused"] == ids["prompt"]
    assert "takes past_decay.9.sum, which no layer reads" in ids["unread"]
    assert "keeps past_decay.0, which is that of" in ids["twice"]


def test_an_activation_function(used: dict[str, Any]) -> None:
    report = used["activation"]
    assert report["names"] == ["gelu", "gelu"]
    assert report["wrong"] == []
    assert report["error"] < 1e-4
