"""A Llama in training, what it writes down, and a student that reads it. Needs torch."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tomllib

torch = pytest.importorskip("torch")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from tests.support.bundles import GOLDEN  # noqa: E402
from tests.tools.train_default.small_model import SMALL  # noqa: E402
from tools.train_default.batches import PAD, load_sources  # noqa: E402
from tools.train_default.describe import earlier_runs, sources  # noqa: E402
from tools.train_default.from_teacher.finetune import (  # noqa: E402
    Finetuning,
    InProcess,
    Settings,
    fit,
    parse_mix,
)
from tools.train_default.from_teacher.llama import Llama, load_llama, save_llama  # noqa: E402
from tools.train_default.from_teacher.soft import SoftTargets, files  # noqa: E402
from tools.train_default.from_teacher.student import narrowed  # noqa: E402
from tools.train_default.from_teacher.targets import batches, write_targets  # noqa: E402
from tools.train_default.model import TernaryLM, causal_attention, soft_loss  # noqa: E402
from tools.train_default.muon import orthogonalise  # noqa: E402
from tools.train_default.recipe import Recipe  # noqa: E402
from tools.train_default.train import Clock, Trainer  # noqa: E402


@pytest.fixture
def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(SMALL, torch.float32)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    rng = np.random.default_rng(1)
    documents = [[0, *(np.arange(size) % 9 + 5)] for size in rng.integers(3, 14, 30)]
    starts = np.cumsum([0, *map(len, documents)])
    np.savez(folder / "real.npz", ids=np.concatenate(documents).astype(np.uint16), starts=starts)
    return folder


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((GOLDEN / "mistral" / name).read_bytes())
    fields = json.loads((GOLDEN / "mistral" / "config.json").read_text())
    fields["rope_theta"] = fields["rope_parameters"]["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = load_llama(tmp_path, 32, torch.float32)
    golden = np.load(GOLDEN / "mistral" / "golden.npz")
    seen = fields["sliding_window"]  # up to which it is a Llama
    with torch.no_grad():
        logits = model(torch.from_numpy(golden["ids"])[None, :seen])[0].numpy()
    np.testing.assert_allclose(logits, golden["logits"][:seen], atol=2e-5)
    save_llama(model, tmp_path, tmp_path / "out")
    again = load_llama(tmp_path / "out", 32, torch.float32)
    for (name, first), (_, second) in zip(model.tensors(), again.tensors(), strict=True):
        assert torch.equal(first, second), name


def test_a_run_learns_and_goes_on(
    llama: Llama, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Llama, "compile", lambda model: None)
    settings = Settings(3e-3, 64, 32, parse_mix("real=1.0"), context=16, warmup_steps=2)
    tuning = Finetuning(llama, settings, tmp_path, tokens)
    worker = InProcess(llama, 1 / 64)
    losses = [tuning.train_step(worker, 0.0) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    tuning.save()
    other = Finetuning(Llama(SMALL, torch.float32), settings, tmp_path, tokens)
    other.restore()
    assert (other.step, other.tokens) == (12, tuning.tokens)
    follows = other.train_step(InProcess(other.model, 1 / 64), 0.0)
    assert abs(follows - losses[-1]) < 0.3 * losses[-1]
    moments = other.adam.state_dict()["state"][0]["step"]
    assert moments == 13, "AdamW's moments went on"


def test_a_run_ends_by_tokens_or_by_a_signal(
    llama: Llama, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Llama, "compile", lambda model: None)
    tuning = Finetuning(llama, Settings(3e-3, 64, 32, {"real": 1.0}, 16), tmp_path, tokens)
    worker = InProcess(llama, 1 / 64)
    clock = Clock(tmp_path, 0.0, 1e6, lambda: float(tuning.tokens))

    def stopped() -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0.5

    usual = signal.getsignal(signal.SIGTERM)
    try:
        assert not fit(tuning, worker, clock, stopped, minutes=0.0)
        assert tuning.step == 1 and (tmp_path / "checkpoint.pt").exists()
        (tmp_path / "until").write_text("150")
        assert fit(tuning, worker, clock, lambda: 0.25, minutes=60.0)
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert 150 <= tuning.tokens < 150 + 64
    rows = [json.loads(line) for line in (tmp_path / "train.log").read_text().splitlines()]
    assert [row["bits_per_byte"] for row in rows if "bits_per_byte" in row] == [0.5, 0.5, 0.25]
    assert rows[-1]["step"] == tuning.step and rows[-1]["tokens"] == tuning.tokens


def test_the_rate_warms_up_and_falls_to_zero(llama: Llama, tokens: Path, tmp_path: Path) -> None:
    settings = Settings(1.0, 64, 32, {"real": 1.0}, warmup_steps=4, decay_from=0.5)
    tuning = Finetuning(llama, settings, tmp_path, tokens)
    assert tuning.rate(0.0) == 0.25
    tuning.step = 100
    assert [tuning.rate(progress) for progress in (0.2, 0.5, 0.75, 1.0)] == [1, 1, 0.5, 0]


def test_targets_are_the_likeliest_and_can_be_interrupted(
    llama: Llama, tokens: Path, tmp_path: Path
) -> None:
    source = load_sources(tokens)["real"]
    model = llama.eval()
    interrupted = write_targets(model, "real", source, 5, 40, tmp_path / "a")
    for _ in range(3):
        next(interrupted)
    interrupted.close()
    rest = sum(write_targets(model, "real", source, 5, 40, tmp_path / "a"))
    whole = sum(write_targets(model, "real", source, 5, 40, tmp_path / "b"))
    assert whole == len(source.ids) and 0 < rest <= whole
    assert sum(write_targets(model, "real", source, 5, 40, tmp_path / "a")) == 0
    for array in files(tmp_path / "a", "real"):  # the message says: remove it
        array.unlink()
        assert sum(write_targets(model, "real", source, 5, 40, tmp_path / "a")) == whole
    for folder in ("a", "b"):
        ids, log_p = SoftTargets(tmp_path / folder, {"real": source}).at(np.arange(whole))
        for start, end in zip(source.starts, source.starts[1:], strict=False):
            document = torch.from_numpy(source.ids[start:end].astype(np.int64))
            with torch.no_grad():
                logs = model(document[None])[0].log_softmax(-1)
            there = logs.gather(1, torch.from_numpy(ids[start:end]).long()).numpy()
            np.testing.assert_allclose(log_p[start:end], there, atol=2e-3)
            np.testing.assert_allclose(
                log_p[start:end], logs.topk(5, dim=-1).values.numpy(), atol=2e-3
            )


def test_batches_hold_every_document_once(tokens: Path) -> None:
    source = load_sources(tokens)["real"]
    parts = [part for batch in batches(source, 40, 9) for part in batch]
    assert sorted(part.start for part in parts) == source.starts[:-1].tolist()
    lengths = np.minimum(np.diff(source.starts), 9)
    assert sum(part.stop - part.start for part in parts) == lengths.sum()
    for batch in batches(source, 40, 9):
        assert len(batch) * max(part.stop - part.start for part in batch) <= 40


def test_the_loss_of_a_teacher_is_its_cross_entropy() -> None:
    torch.manual_seed(2)
    teacher, student = torch.randn(2, 6, 40).log_softmax(-1)
    top = teacher.topk(40, dim=-1)
    taught, says = soft_loss(student, top.indices, top.values)
    expected = -(teacher.exp() * student).sum(-1)
    torch.testing.assert_close(taught, expected, atol=1e-4, rtol=1e-4)
    assert says.tolist() == [1] * 6
    few = teacher.topk(3, dim=-1)
    taught, _ = soft_loss(student, few.indices, few.values)
    own = student.gather(1, few.indices)
    rest = (1 - few.values.exp().sum(-1)) * (1 - own.exp().sum(-1)).log()
    torch.testing.assert_close(taught, -(few.values.exp() * own).sum(-1) - rest)


def test_tokens_on_which_the_teacher_is_silent_are_learned_from_text() -> None:
    torch.manual_seed(3)
    model = TernaryLM(SMALL)
    model.soft_weight = 0.25
    ids = torch.randint(0, 40, (2, 8))
    targets = torch.randint(0, 40, (2, 8))
    targets[1, 5:] = PAD
    plain, _ = model.loss(ids, targets)
    top = torch.randn(2, 8, 40).log_softmax(-1).topk(4, dim=-1)
    silent = torch.full_like(top.values, -torch.inf)
    torch.testing.assert_close(model.loss(ids, targets, top.indices, silent)[0], plain)
    mixed, _ = model.loss(ids, targets, top.indices, top.values)
    with torch.no_grad():
        logs = model(ids).log_softmax(-1).flatten(0, 1)
    taught, _ = soft_loss(logs, top.indices, top.values)
    taught = taught[targets.flatten() != PAD].sum()
    torch.testing.assert_close(mixed, 0.75 * plain + 0.25 * taught)
    mixed.backward()
    assert torch.isfinite(model.embed_tokens.weight.grad).all()


@pytest.mark.parametrize(("weight", "says"), [(0.5, False), (0.0, True)])
def test_targets_come_with_a_recipe_that_learns_from_them(
    weight: float, says: bool, tokens: Path, tmp_path: Path
) -> None:
    recipe = Recipe(soft_weight=weight, model=SMALL)
    with pytest.raises(ValueError, match="--targets"):
        Trainer(recipe, tmp_path, tokens, tmp_path if says else None)


def test_products_in_bfloat16_are_near_those_in_float32() -> None:
    torch.manual_seed(4)
    ids, targets = torch.randint(0, 40, (2, 2, 16)).unbind()
    for model in (TernaryLM(SMALL), Llama(SMALL, torch.float32)):
        exact, _ = model.loss(ids, targets)
        model.products = torch.bfloat16
        near, _ = model.loss(ids, targets)
        assert exact.item() != near.item()
        torch.testing.assert_close(near, exact, rtol=5e-3, atol=0)
    update = torch.randn(2, 48, 32)
    near = orthogonalise(update, products=torch.bfloat16)
    torch.testing.assert_close(near, orthogonalise(update), rtol=0, atol=0.05)
    assert near.dtype == torch.float32


def test_a_narrowed_table_keeps_which_words_are_alike() -> None:
    torch.manual_seed(5)
    kinds = torch.randn(4, 32)
    table = kinds.repeat_interleave(10, 0) + 0.1 * torch.randn(40, 32)
    rows = narrowed(table, 8)
    assert rows.shape == (40, 8) and rows.std().item() == pytest.approx(0.05)
    closeness = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=-1)
    alike = torch.arange(40)[:, None] // 10 == torch.arange(40) // 10
    assert closeness[alike].min() > 0.9 > closeness[~alike].max()
    whole = narrowed(table, 32)
    gram = table @ table.T
    own = whole @ whole.T * (gram[0, 0] / whole[0].square().sum())
    torch.testing.assert_close(own, gram, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="32 dimensions, and 33"):
        narrowed(table, 33)


@pytest.mark.parametrize("tokens", [1, 128, 300])
def test_attention_in_training_is_that_of_torch(tokens: int) -> None:
    torch.manual_seed(tokens)
    q, k, v = (torch.randn(2, heads, tokens, 8, requires_grad=True) for heads in (6, 2, 2))
    change = torch.randn(2, 6, tokens, 8)
    results = []
    usual = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    for attention in (causal_attention, usual):
        out = attention(q, k, v)
        results.append((out, *torch.autograd.grad(out, (q, k, v), change)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


def test_a_recipe_names_the_sources_of_the_runs_it_goes_on_from(tmp_path: Path) -> None:
    earlier = tmp_path / "second.toml"
    run = (
        "{0}[{1}training]\nsoft_weight = {2}\n[{1}mix]\n{3} = [0.1, 0.1]\n"
        "[{1}course]\nstep = {4}\n[{1}data.{3}]\ntokens = 5\n"
    )
    second = run.format("", "", 0.0, "brief", 9)
    earlier.write_text(run.format(second, "earlier.", 0.7, "books", 4))
    last = Recipe(mix={"real": (1.0, 1.0)})
    assert not any("CC-BY" in line or "SmolLM2" in line for line in sources(last, None))
    lines = "\n".join(sources(last, earlier))
    assert "TinyStories" in lines and "CC-BY" in lines and "SmolLM2" in lines
    assert "stories260K" not in lines
    tables = tomllib.loads("\n".join(earlier_runs(earlier)))
    assert tables["earlier"]["course"] == {"step": 9}
    assert tables["earlier"]["earlier"]["mix"] == {"books": [0.1, 0.1]}
    assert tables["earlier"]["earlier"]["data"] == {"books": {"tokens": 5}}
