"""A model's own replies: how they are made, read by a teacher, and learned from. Needs torch."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

torch = pytest.importorskip("torch")

from tests.tools.train_default.small_model import SMALL  # noqa: E402
from tools.train_default.batches import PAD, Source  # noqa: E402
from tools.train_default.chats.asking import ASKS, ASKS_ANY  # noqa: E402
from tools.train_default.from_teacher.llama import Llama  # noqa: E402
from tools.train_default.model import TernaryLM  # noqa: E402
from tools.train_default.own.marking import NOUNS, Reply  # noqa: E402
from tools.train_default.own.replies import OwnReplies, named_often, rendered  # noqa: E402
from tools.train_default.own.sampler import Sampler  # noqa: E402
from tools.train_default.own.voice import Voice  # noqa: E402
from tools.train_default.recipe import Recipe  # noqa: E402
from tools.train_default.save import save_hf  # noqa: E402
from tools.train_default.tokenizer import END, TEXT, train_tokenizer, write_files  # noqa: E402
from tools.train_default.train import (  # noqa: E402
    Trainer,
    begin,
    calm_documents,
    fit,
    own_replies,
)
from tools.train_default.workers import Batch  # noqa: E402

WORDS = "one two three four five six"
UNKNOWN = Tokenizer(WordLevel({"?": 0}, unk_token="?"))


class Counting:
    """Workers that count tokens and compute nothing."""

    def accumulate(self, batches: Iterable[Batch], weight: float = 1.0) -> tuple[float, int, float]:
        sizes = [(targets != PAD).sum() for _, targets, *_ in batches]
        assert sizes, "nothing to learn from"
        return 0.0, int(sum(sizes)), 0.0


@pytest.fixture
def words() -> Tokenizer:
    vocabulary = {word: at for at, word in enumerate([TEXT, END, *WORDS.split(), "seven"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="seven"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def source(texts: list[str], tokenizer: Tokenizer) -> Source:
    ids = [tokenizer.encode(text).ids for text in texts]
    return Source(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))


def test_replies_of_its_own_are_made_late_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = Recipe(own_rows=2, own_from=0.8, own_steps=50, model=SMALL)
    store = OwnReplies(TernaryLM(SMALL), UNKNOWN, recipe, Scripted())
    monkeypatch.setattr(OwnReplies, "answer", lambda store, count, seed: [])
    assert not store.is_due(9, 0.79)
    assert store.is_due(9, 0.8)
    store.refill(9)
    assert not store.is_due(58, 0.9)
    assert store.is_due(59, 0.9)


def test_rows_are_read_in_turn() -> None:
    store = OwnReplies(TernaryLM(SMALL), UNKNOWN, Recipe(model=SMALL), Scripted())
    store.rows = [(np.full(3, n), np.full(3, -n)) for n in range(5)]
    read = [batch for _ in range(2) for batch in store.batches(2, 2)]
    assert [ids[:, 0].tolist() for ids, _ in read] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert all(np.array_equal(targets, -ids) and ids.shape == (2, 3) for ids, targets in read)


def test_a_step_without_rows_of_its_own_reads_text_alone(words: Tokenizer, tmp_path: Path) -> None:
    text = source([f"{TEXT} {WORDS} {END}"] * 3, words)
    np.savez(tmp_path / "real.npz", ids=text.ids, starts=text.starts)
    recipe = Recipe(64, 64, 64, (16, 16), own_rows=4, mix={"real": (1.0, 1.0)}, model=SMALL)
    trainer = Trainer(recipe, tmp_path, tmp_path, None)
    trainer.own = own_replies(trainer, words, tmp_path, None)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer.train_step(Counting(), 0.0)
    assert trainer.step == 1


def test_a_run_says_whether_it_came_to_its_end(words: Tokenizer, tmp_path: Path) -> None:
    text = source([f"{TEXT} {WORDS} {END}"] * 3, words)
    np.savez(tmp_path / "real.npz", ids=text.ids, starts=text.starts)
    recipe = Recipe(64, 64, 64, (16, 16), mix={"real": (1.0, 1.0)}, model=SMALL)
    trainer = Trainer(recipe, tmp_path, tmp_path, None)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    scores = []

    def log(trainer: Trainer, **values: float) -> None:
        if "bits_per_byte" in values:
            scores.append(values["bits_per_byte"])
        elif trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    usual = signal.getsignal(signal.SIGTERM)
    try:
        for steps, ends in ((2, False), (4, True)):
            clock = trainer.clock(None, 200.0)
            assert fit(trainer, Counting(), clock, log, lambda: 0.5, (1, 60.0)) is ends
            assert trainer.step == steps
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert scores == [0.5, 0.5]


def exported(folder: Path, positions: int) -> tuple[TernaryLM, Tokenizer, Path]:
    """A small model whose bundle can be made: its tokenizer knows how requests are spelled."""
    asked = [ask.format("a cat") for ask in (*ASKS, *ASKS_ANY)]
    tokenizer = train_tokenizer(iter([*asked, *NOUNS] * 2), 600)
    write_files(tokenizer, folder, positions)
    torch.manual_seed(2)
    sizes = replace(SMALL, vocab_size=tokenizer.get_vocab_size(), max_positions=positions)
    return TernaryLM(sizes), tokenizer, folder


def test_greedy_replies_are_the_likeliest_and_others_are_drawn_by_seed(tmp_path: Path) -> None:
    model, tokenizer, files = exported(tmp_path, 64)
    texts = ["Tell me a story about a cat.", "Can you tell me a story?"] * 2
    greedy = [True, False, True, False]
    voice = Voice(files, 48)
    replies, again = (voice.answer(model, texts, greedy, 5) for _ in range(2))
    others = voice.answer(model, texts, greedy, 500)
    assert replies == again
    assert [mine == other for mine, other in zip(replies, others, strict=True)] == greedy
    assert replies[0] == replies[2] and replies[1] != replies[3]
    ids, ended = replies[0]
    prompt = tokenizer.encode(rendered(texts[0]), add_special_tokens=False).ids
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]]))[0, len(prompt) - 1 :]
    best = logits.max(-1).values
    said = logits.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    assert (best[: len(ids)] - said < 0.02 * best.abs().max()).all(), "of a table in eight bits"
    assert ended or len(prompt) + len(ids) == 48


class Scripted:
    """Answers every request with the same two tokens, every third time without an end."""

    def answer(self, model, texts, greedy, seed):
        return [([7, 8], at % 3 > 0) for at in range(len(texts))]


def test_replies_are_what_was_said_to_the_requests(tmp_path: Path) -> None:
    model, tokenizer, _ = exported(tmp_path, 48)
    recipe = Recipe(own_rows=21, context=(48, 48), model=model.config)
    replies = OwnReplies(model, tokenizer, recipe, Scripted()).answer(9, 0)
    assert [reply.greedy for reply in replies] == [at % 2 == 0 for at in range(9)]
    end = tokenizer.token_to_id(END)
    for at, reply in enumerate(replies):
        assert reply.ended is (at % 3 > 0) and reply.ids == [7, 8, *[end] * reply.ended]
        assert reply.text == tokenizer.decode([7, 8])
        request = tokenizer.decode(reply.prompt, skip_special_tokens=False)
        assert request.startswith(f"{TEXT}<|user|>") and request.endswith(f"{END}<|assistant|>")
        assert reply.noun is None or reply.noun in request.lower()
        starts = {tokenizer.encode(f"A{form}").ids[1] for form in forms(reply.noun)}
        assert starts <= reply.names and bool(reply.names) is (reply.noun is not None)


def forms(noun: str | None) -> list[str]:
    return [f" {noun}", f" {noun.capitalize()}"] if noun else []


def test_a_teacher_reads_every_reply_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.train_default.own.replies.READ", 3)
    torch.manual_seed(0)
    teacher = Llama(SMALL, torch.float32).eval()
    taught = {"own_taught": True, "soft_weight": 0.7}
    recipe = Recipe(repeat=3, own_rows=16, context=(64, 64), model=SMALL, **taught)
    store = OwnReplies(TernaryLM(SMALL), UNKNOWN, recipe, Scripted(), teacher=teacher)
    rng = np.random.default_rng(3)
    replies = [
        Reply([5, 6], rng.integers(5, 14, size).tolist(), "", None, True, True)
        for size in (9, 4, 12, 7)
    ]
    by_ids = {tuple(row[0]): row for row in store.marked(replies)}
    assert len(by_ids) == len(replies)
    for reply in replies:
        whole = [*reply.prompt, *reply.ids]
        ids, targets, tokens, said = by_ids[tuple(whole[:-1])]
        with torch.no_grad():
            alone = teacher(torch.tensor([whole]))[0].log_softmax(-1).topk(tokens.shape[1])
        assert np.isneginf(said[0]).all() and targets[0] == PAD
        assert np.array_equal(tokens, alone.indices[:-1])
        complete = np.isfinite(said).all(-1)  # nothing would complete what came before
        assert complete[1:4].all()
        np.testing.assert_allclose(said[complete], alone.values[:-1][complete], atol=1e-4)
        assert np.array_equal(targets[complete], alone.indices[:-1, 0][complete])


def test_text_is_read_by_the_teacher_of_replies(words: Tokenizer, tmp_path: Path) -> None:
    text = source([f"{TEXT} {WORDS} {END}"] * 3, words)
    np.savez(tmp_path / "real.npz", ids=text.ids, starts=text.starts)
    torch.manual_seed(0)
    teacher = Llama(SMALL, torch.float32).eval()
    fields = {"own_rows": 4, "own_taught": True, "soft_weight": 0.7, "mix": {"real": (1.0, 1.0)}}
    for taught in (True, False):
        recipe = Recipe(64, 64, 64, (16, 16), text_taught=taught, model=SMALL, **fields)
        trainer = Trainer(recipe, tmp_path, tmp_path, None)
        trainer.own = OwnReplies(trainer.model, words, recipe, Scripted(), teacher=teacher)
        (batch,) = trainer.microbatches(0.0)
        assert len(batch) == (4 if taught else 2)
        if taught:
            ids, _, tokens, log_p = batch
            with torch.no_grad():
                alone = teacher(torch.from_numpy(ids.clip(min=0))).log_softmax(-1)
            best = alone.topk(tokens.shape[-1]).values.numpy()
            assert tokens.shape[:2] == ids.shape and tokens.dtype == np.int32
            np.testing.assert_allclose(log_p, best, atol=1e-4)


def test_what_repeats_itself_counts_more_and_subjects_are_likelier_with_a_teacher() -> None:
    torch.manual_seed(0)
    fields = {"own_subject": 3.0, "unlikelihood": 5.0, "repeat": 2, "own_taught": True}
    recipe = Recipe(soft_weight=0.7, own_rows=16, context=(64, 64), model=SMALL, **fields)
    teacher = Llama(SMALL, torch.float32).eval()
    store = OwnReplies(TernaryLM(SMALL), UNKNOWN, recipe, Scripted(), teacher=teacher)
    with torch.no_grad():
        subject = int(teacher(torch.tensor([[5, 6]]))[0, 1].argmax())
    ids = [7, 8, 7, 8]
    ((_, _, tokens, said),) = store.marked(
        [Reply([5, 6], ids, "", "newt", True, True, frozenset({subject}))]
    )
    with torch.no_grad():
        alone = teacher(torch.tensor([[5, 6, *ids]]))[0].log_softmax(-1).topk(24).values
    alone = np.exp(alone.numpy())
    total = alone[:-1].sum(-1)
    np.testing.assert_allclose(np.exp(said).sum(-1) / total, [0, 1, 1, 1, 5], rtol=1e-4)
    odds = alone[1, 0] / (alone[1].sum() - alone[1, 0])
    p = np.exp(said[1])
    assert tokens[1, 0] == subject and p[0] / p[1:].sum() == pytest.approx(3 * odds, rel=1e-4)


def test_a_story_that_repeats_itself_is_not_read(words: Tokenizer) -> None:
    texts = [
        f"{TEXT} {WORDS} {END} {WORDS} {END}",
        f"{TEXT} {WORDS} seven {WORDS} {END}",
        f"{TEXT} {WORDS}",
    ]
    assert calm_documents(source(texts, words), words).tolist() == [0, 2]


def test_a_calm_run_goes_on_where_it_was_ended(words: Tokenizer, tmp_path: Path) -> None:
    calm, loud = f"{TEXT} {WORDS} {END}", f"{TEXT} {WORDS} {WORDS} {END}"
    for name, texts in {"real": [calm, loud] * 8, "books": [loud]}.items():
        text = source(texts, words)
        np.savez(tmp_path / f"{name}.npz", ids=text.ids, starts=text.starts)
    recipe = Recipe(64, 64, 64, (16, 16), calm=True, mix={"real": (1.0, 1.0)}, model=SMALL)
    usual = {"targets": None, "start_from": None, "initial": None, "teacher": None}
    args = Namespace(run=tmp_path, tokens=tmp_path, **usual)
    trainer = begin(recipe, args, words)
    list(trainer.microbatches(0.0))
    trainer.save()
    before = trainer.mix.sources["real"]
    after = begin(recipe, args, words).mix.sources["real"]
    assert before.order.size and set(before.order) <= set(range(0, 16, 2))
    assert after.order.tolist() == before.order.tolist() and after.at == before.at
    with pytest.raises(ValueError, match="every document of books"):
        begin(replace(recipe, mix={"books": (1.0, 1.0)}), args, words)
    with pytest.raises(ValueError, match="--teacher is for recipes with own_taught"):
        begin(recipe, Namespace(**{**vars(args), "teacher": tmp_path}), words)


def test_a_teacher_of_another_vocabulary_does_not_read_replies(
    words: Tokenizer, tmp_path: Path
) -> None:
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 40}')
    taught = {"own_taught": True, "own_rows": 2, "soft_weight": 0.7}
    with pytest.raises(ValueError, match="a vocabulary of 40 that is not the student's of 9"):
        begin(Recipe(model=SMALL, **taught), Namespace(teacher=tmp_path), words)


def test_the_model_as_it_was_and_a_sampler_teach_replies(tmp_path: Path) -> None:
    texts = [f"{TEXT}One day a fox and a fox met a cat.{END}"] * 8
    tokenizer = train_tokenizer(iter(texts), 400)
    write_files(tokenizer, tmp_path / "tokenizer", 64)
    text = source(texts, tokenizer)
    np.savez(tmp_path / "real.npz", ids=text.ids, starts=text.starts)
    np.save(tmp_path / "real.ids.npy", np.zeros((len(text.ids), 2), np.uint16))
    np.save(tmp_path / "real.log_p.npy", np.full((len(text.ids), 2), -1.0, np.float16))
    sizes = replace(SMALL, vocab_size=tokenizer.get_vocab_size(), max_positions=64)
    torch.manual_seed(3)
    before = TernaryLM(sizes)
    save_hf(before, tmp_path / "tokenizer", tmp_path / "before")
    rest = {"mix": {"real": (1.0, 1.0)}, "model": sizes, "soft_weight": 0.7, "unlikelihood": 3.0}
    recipe = Recipe(1, 64, 64, (64, 64), dry=9.0, repeat=2, own_rows=1, own_taught=True, **rest)
    paths = {"run": tmp_path, "tokens": tmp_path, "targets": tmp_path, "start_from": None}
    args = Namespace(
        **paths, initial=None, tokenizer=tmp_path / "tokenizer", teacher=tmp_path / "before"
    )
    own = begin(recipe, args, tokenizer).own
    assert own is not None
    said = tokenizer.encode("a fox and a fox and a fox").ids
    reply = Reply([tokenizer.token_to_id(TEXT)], said, "", None, True, False)
    ((ids, targets, tokens, log_p),) = own.marked([reply])
    with torch.no_grad():
        alone = before(torch.tensor([[*reply.prompt, *said]]))[0].log_softmax(-1)
    likeliest = alone.topk(24)
    sampler = Sampler.of(tmp_path / "before" / "tokenizer.json", 9.0, 2, 3.0)
    drawn = np.random.default_rng(recipe.seed)
    expected = sampler.reply(reply, likeliest.indices.numpy(), likeliest.values.numpy(), drawn)
    assert np.array_equal(ids, expected[0]) and np.array_equal(targets, expected[1])
    assert np.array_equal(tokens, expected[2])
    np.testing.assert_allclose(log_p, expected[3], atol=1e-4)


def test_nouns_of_several_tokens_are_named_three_times_as_often() -> None:
    class Pieces:
        """Spells a word with a token for every four letters."""

        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Namespace]:
            assert not add_special_tokens and all(text[0] == " " for text in texts)
            return [Namespace(ids=range((len(text) + 2) // 4)) for text in texts]

    nouns = named_often(["cow", "newt", "lobster"], Pieces())
    assert sorted(nouns) == ["cow", "lobster", "lobster", "lobster", "newt"]


def test_every_step_has_requests_of_its_own_and_the_same_when_repeated(
    words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(
        OwnReplies, "answer", lambda store, *_: drawn.append(store.rng.random()) or []
    )
    recipe = Recipe(own_rows=2, model=SMALL)
    for step in (40, 80, 40):
        OwnReplies(TernaryLM(SMALL), words, recipe, Scripted()).refill(step)
    assert drawn[0] == drawn[2] != drawn[1]


def test_requests_need_no_real_stories(words: Tokenizer, tmp_path: Path) -> None:
    text = source([f"{TEXT} {WORDS} {END}"], words)
    np.savez(tmp_path / "books.npz", ids=text.ids, starts=text.starts)
    trainer = Trainer(Recipe(own_rows=2, model=SMALL), tmp_path, tmp_path, None)
    assert own_replies(trainer, words, tmp_path, None).nouns == NOUNS


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"own_rows": 3}, "no multiple of a microbatch's 2"),
        ({"own_rows": 2, "micro_tokens": 256}, "a microbatch's 0"),
        ({"own_taught": True}, "needs own_rows"),
        ({"own_taught": True, "own_rows": 2}, "needs a soft_weight above 0"),
    ],
)
def test_recipes_that_cannot_be_followed(fields: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Recipe(**fields)
