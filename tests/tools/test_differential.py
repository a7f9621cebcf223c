"""Random checkpoints beside transformers: every family has some, and what differs is told."""

import json
import shutil
import sys

import numpy as np
import pytest

from edgerun_export.architectures import architecture_names
from tools.golden.differential import compare
from tools.golden.differential.parts import FULL, SLIDING, Draw
from tools.golden.differential.registry import FAMILIES, SAME_AS, WITHOUT, drawn_config
from tools.golden.differential.variants import variants


@pytest.fixture
def llama(repo_root, tmp_path):
    """A copy of a golden checkpoint, which may be altered."""
    return shutil.copytree(repo_root / "tests" / "golden" / "llama", tmp_path / "llama")


def alter_logits(folder, change=1.0):
    """Puts one logit of the last token in another place."""
    golden = dict(np.load(folder / "golden.npz"))
    golden["logits"][-1, 3] += change
    np.savez(folder / "golden.npz", **golden)


def alter_config(folder, **keys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))


def run(folder):
    return compare.compare(folder, ["reference"], "fp32", compare.TOLERANCE)


def test_every_architecture_has_a_generator_or_a_reason():
    assert {*FAMILIES, *WITHOUT} == {*architecture_names()}
    assert not {*FAMILIES} & {*WITHOUT}
    assert {*SAME_AS, *SAME_AS.values()} <= {*FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_configurations_are_json_and_come_again(family):
    drawn = [json.dumps(drawn_config(family, seed)) for seed in range(20)]
    assert drawn == [json.dumps(drawn_config(family, seed)) for seed in range(20)]
    assert len({*drawn}) > 1


def test_variants_change_the_text_model():
    rope = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
    text = {"num_hidden_layers": 2, "sliding_window": 4, "rope_parameters": rope}
    config = {"model_type": "llava", "text_config": text}
    changed = {name: each["text_config"] for name, each in variants(config, Draw(0))}
    assert {"added-scaling", "types-of-layers", "version-4"} <= {*changed}
    assert changed["added-scaling"]["rope_parameters"]["rope_type"] == "default"
    assert {*changed["types-of-layers"]["layer_types"]} <= {SLIDING, FULL}
    assert changed["version-4"]["rope_theta"] == 100.0
    assert changed["version-4"]["rope_scaling"]["factor"] == 2.0
    assert config["text_config"] == text


def test_logits_as_recorded_are_the_same(llama):
    result = run(llama)
    assert (result.verdict, result.tokens) == (compare.SAME, 24), result.line
    assert 0 < result.differences["reference"] < 1e-5


@pytest.mark.parametrize("change", [1.0, np.nan])
def test_altered_logits_differ(llama, change):
    alter_logits(llama, change)
    assert run(llama).verdict == compare.DIFFERS


def test_what_an_export_does_not_support_is_told(llama):
    alter_config(llama, hidden_act="gelu")
    result = run(llama)
    assert result.verdict == compare.REFUSED
    assert "'gelu'" in result.line


def test_a_broken_checkpoint_fails(llama):
    alter_config(llama, num_key_value_heads=3)
    assert run(llama).verdict == compare.FAILED


def test_a_shorter_context_is_compared_with_a_short_text():
    golden = {
        "ids": np.arange(20),
        "logits": np.zeros((20, 3), np.float32),
        "short": np.ones((16, 3), np.float32),
    }
    for context, tokens, value in ((32, 20, 0), (20, 20, 0), (18, 16, 1), (12, 12, 1)):
        ids, logits = compare.within(golden, context)
        assert len(ids) == len(logits) == tokens
        assert (logits == value).all()


@pytest.mark.parametrize("count", [1, 5, 8, 9, 16, 41])
def test_parts_are_the_prompt(count):
    ids = np.arange(count, dtype=np.int32)
    parts = compare.parts(ids)
    assert (np.concatenate(parts) == ids).all()
    assert all(len(part) for part in parts)
    assert [len(part) for part in parts[-compare.STEPS :]] == [1] * min(count, compare.STEPS)


@pytest.mark.parametrize(("altered", "code"), [(False, 0), (True, 1)])
def test_exit_code_and_report(llama, tmp_path, monkeypatch, capsys, altered, code):
    if altered:
        alter_logits(llama)
    report = tmp_path / "report.json"
    words = ["compare", str(tmp_path), "--backends", "reference", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as exit_:
        compare.main()
    assert exit_.value.code == code
    verdict = compare.DIFFERS if altered else compare.SAME
    assert capsys.readouterr().out.splitlines()[-1] == f"1 {verdict}"
    assert [result["verdict"] for result in json.loads(report.read_text())] == [verdict]
