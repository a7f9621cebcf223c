"""The model that comes with the project: complete, small, and as good as its record says."""

import re
from pathlib import Path

import pytest

from edgerun import load
from edgerun.cli.main import main
from edgerun.llm.scoring import score_texts, split_documents
from edgerun.model.bundle import open_bundle
from tests.support.peers import needs_complete_onnxruntime

FOLDER = Path(__file__).resolve().parents[1] / "models" / "default"
MAX_BYTES = 12_000_000
MAX_BITS_PER_BYTE = 0.72
SUBJECTS = ("cat", "dragon", "princess", "robot")


def test_the_bundle_is_whole_ternary_and_small():
    bundle = open_bundle(FOLDER / "bundle", verify=True)
    assert bundle.manifest.recipe["natively_ternary"]
    assert sum(entry.size for entry in bundle.manifest.files.values()) <= MAX_BYTES


def test_a_chat_reply_streams_from_it(capsys):
    assert main(["run", "-p", "Tell me a story about a dog.", "--seed", "1", "-n", "150"]) == 0
    words = capsys.readouterr().out.split()
    assert len(words) >= 40


@pytest.mark.parametrize(
    "backend",
    ["cpu", "reference", pytest.param("onnxruntime", marks=needs_complete_onnxruntime)],
)
def test_greetings_are_answered_alike_everywhere(backend):
    with load(backend=backend, threads=1, kv_cache="fp32") as llm:
        reply = llm.chat([{"role": "user", "content": "Hello!"}], temperature=0, max_tokens=24)
    assert reply.finish_reason == "stop"
    assert reply.text.strip()


def test_it_has_nothing_that_its_template_could_be_told(capsys):
    refused = {
        "--no-think": "has no switch for thinking",
        "--template-value=effort=high": "does not read 'effort'",
    }
    for flag, sentence in refused.items():
        assert main(["run", flag, "-p", "Hello"]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_story_is_about_what_was_asked_for(subject):
    with load(threads=1) as llm:
        messages = [{"role": "user", "content": f"Tell me a story about a {subject}."}]
        reply = llm.chat(messages, temperature=0, max_tokens=80, repetition_penalty=1.0)
    assert re.search(rf"\b{subject}s?\b", reply.text)


def test_stories_told_together_are_those_told_alone():
    prompts = [f"Once upon a time there was a {subject}" for subject in SUBJECTS]
    sampling = {"temperature": 0.7, "seed": 3, "max_tokens": 40}
    with load(threads=1) as llm:
        together = llm.generate_many(prompts, **sampling)
        alone = [llm.generate(prompt, **sampling) for prompt in prompts]
    assert [reply.ids for reply in together] == [reply.ids for reply in alone]
    assert len({reply.text for reply in together}) == len(SUBJECTS)


@pytest.mark.parametrize(
    ("stories", "name"),
    [
        (16, "bits_per_byte_first_16_stories"),
        pytest.param(None, "bits_per_byte", marks=pytest.mark.slow),
    ],
)
def test_held_out_stories_cost_as_many_bits_as_recorded(shared_data, stories, name):
    recorded = re.search(rf"^{name} = ([\d.]+)", (FOLDER / "recipe.toml").read_text(), re.M)
    text = (shared_data / "corpora" / "tinystories" / "valid.txt").read_text()
    with load(threads=1) as llm:
        *_, score = score_texts(llm, list(split_documents(text, "<|endoftext|>"))[:stories])
    assert score.bits_per_byte <= MAX_BITS_PER_BYTE
    assert score.bits_per_byte == pytest.approx(float(recorded[1]), rel=0.003)
