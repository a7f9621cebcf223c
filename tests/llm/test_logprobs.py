"""Log-probabilities of replies are those of the model's logits, however a reply came about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.openvino import executable
from edgerun.engine.drafting.drafting import Drafting
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.llm.replies.completion import Completion
from tests.llm.chats.test_structure import Almost
from tests.llm.test_drafts import Eager
from tests.llm.test_loading import altered
from tests.support import fakes
from tests.support.bundles import bundle_of

PROMPT = "Tim said hi. Tim said"
PENALISED: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 3,
    "seed": 4,
    "repetition_penalty": 1.4,
    "logit_bias": {5: 9.0, 300: 8.0},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy with penalties": {"temperature": 0, "frequency_penalty": 1.5},
    "sampled": {"temperature": 1.4, "seed": 3},
    "sampled with penalties": PENALISED,
    "drawn by NumPy": {"temperature": 1.2, "typical_p": 0.9, "seed": 2},
    "with a stop text": {"temperature": 0, "stop": ["hello", "."]},
    "with a regular expression": {"regex": "[a-z]{3,9}, [0-9]{4}", "temperature": 1.5, "seed": 1},
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model that comes with edgerun."""
    with edgerun.load(context=512) as loaded:
        yield loaded


def check(llm: LLM, prompt: list[int], reply: Completion, count: int, error: float = 2e-6) -> None:
    """Compares with logits of prompt and reply, computed at once, and NumPy."""
    assert reply.ids
    assert [entry.id for entry in reply.logprobs] == reply.ids
    blocks = [block.copy() for block in llm.logits([*prompt, *reply.ids])]
    logits = np.concatenate(blocks)[len(prompt) - 1 : -1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, entry in zip(logprobs, reply.logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.id], abs=error)
        ids, values = zip(*entry.top, strict=True)
        assert len(set(ids)) == count
        assert list(values) == pytest.approx(row[list(ids)].tolist(), abs=error)
        assert list(values) == pytest.approx(sorted(row, reverse=True)[:count], abs=error)


@pytest.mark.parametrize("name", OPTIONS)
def test_they_are_those_of_the_logits_as_they_are(llm: LLM, name: str) -> None:
    prompt = llm.tokenizer.encode(PROMPT)
    options = {"max_tokens": 24, **OPTIONS[name]}
    reply = llm.generate(prompt, logprobs=5, **options)
    check(llm, prompt, reply, 5)
    plain = llm.generate(prompt, **options)
    assert (plain.ids, plain.text, plain.finish_reason, plain.logprobs) == (
        reply.ids,
        reply.text,
        reply.finish_reason,
        [],
    )
    without = llm.generate(prompt, logprobs=0, **options).logprobs
    assert [(entry.id, entry.logprob, ()) for entry in reply.logprobs] == [
        (entry.id, entry.logprob, entry.top) for entry in without
    ]


def test_nothing_depends_on_others_drafts_or_threads(llm: LLM) -> None:
    """Bit for bit."""
    asked: list[Any] = [{**options, "max_tokens": 24} for options in OPTIONS.values()]
    for count, options in enumerate(asked[1:]):  # and a reply of which only the largest is wanted
        options["logprobs"] = count
    alone = [llm.generate(PROMPT, **options) for options in asked]
    expected = [(reply.ids, reply.logprobs) for reply in alone]
    together = llm.generate_many([PROMPT] * len(asked), asked)
    assert [(reply.ids, reply.logprobs) for reply in together] == expected
    with ThreadPoolExecutor(4) as pool:
        threads = pool.map(lambda options: llm.generate(PROMPT, **options), asked)
        assert [(reply.ids, reply.logprobs) for reply in threads] == expected
    with edgerun.load(context=512, threads=1, draft="none") as other:
        replies = [other.generate(PROMPT, **options) for options in asked]
        assert [(reply.ids, reply.logprobs) for reply in replies] == expected
        for options, reply in zip(asked, replies, strict=True):
            ids = reply.ids
            drafting: Any = Drafting(lambda ids=ids: Almost(ids, alone[0].prompt_tokens))
            drafting.pace = Eager()
            other._engine._drafting = drafting
            drafted = other.generate(PROMPT, **options)
            assert (drafted.ids, drafted.logprobs) == (reply.ids, reply.logprobs)
            assert drafted.stats.accepted_tokens > 0


@pytest.mark.parametrize(
    ("backend", "name", "weights", "error"),
    [
        ("cpu", "llama", "int4", 2e-6),
        ("cpu", "lfm2", "int8", 2e-6),
        ("reference", "llama", "fp32", 2e-5),
        ("onnxruntime", "llama", "fp32", 1e-2),  # the last bit of an activation that it rounds
        ("openvino", "llama", "fp32", 1e-4),
    ],
)
def test_every_back_end_gives_them(
    backend: str,
    name: str,
    weights: str,
    error: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: Any = {}
    if backend == "openvino":
        pytest.importorskip("openvino")
        monkeypatch.setattr(executable, "settings", lambda: SimpleNamespace(cache_dir=tmp_path))
        options["device"] = "CPU"
    path, prompts = bundle_of(name, weights=weights), [[5, 6, 5, 6, 5], [5, 9, 2]]
    each: list[Any] = [{"temperature": 0}, {"temperature": 1.3, "seed": 5}]
    with edgerun.load(path, backend=backend, context=128, kv_cache="fp32", **options) as llm:
        replies = llm.generate_many(prompts, each, max_tokens=12, ignore_eos=True, logprobs=20)
        for prompt, reply in zip(prompts, replies, strict=True):
            check(llm, prompt, reply, 20, error)


def test_a_stream_has_as_many_as_ids_after_every_piece(llm: LLM) -> None:
    for name in ("sampled", "with a stop text"):
        options = OPTIONS[name]
        with llm.stream(PROMPT, logprobs=1, **{"max_tokens": 24, **options}) as pieces:
            for _ in pieces:
                assert len(pieces.completion.logprobs) == len(pieces.completion.ids) > 0
        assert len(pieces.completion.logprobs) == len(pieces.completion.ids)
    with llm.stream(PROMPT, logprobs=1) as pieces:
        next(pieces)
    assert pieces.completion.finish_reason == "cancelled"
    assert len(pieces.completion.logprobs) == len(pieces.completion.ids) > 0


def test_the_token_that_ends_a_reply_has_none() -> None:
    count = len(fakes.byte_tokenizer().encode("hi"))
    llm = LLM(fakes.fake_model(fakes.saying("abc", count)))
    ended = llm.generate("hi", logprobs=0)
    assert (ended.text, len(ended.logprobs)) == ("abc", 3)
    expected = 10 - math.log(math.exp(10) + fakes.VOCAB - 1)  # of the model that always says so
    assert [entry.logprob for entry in ended.logprobs] == pytest.approx([expected] * 3, abs=1e-6)
    stopped = llm.generate("hi", logprobs=2, stop="b")
    assert stopped.text == "a"
    assert [entry.top for entry in stopped.logprobs] == [
        ((97, pytest.approx(expected)), (0, pytest.approx(expected - 10))),
        ((98, pytest.approx(expected)), (0, pytest.approx(expected - 10))),
    ]


def test_chats_and_sessions_have_them(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello."}]
    options: Any = {"temperature": 0, "max_tokens": 9, "logprobs": 3}
    chat = llm.chat(messages, **options)
    check(llm, llm._format.encode(messages, context=512).ids, chat, 3)
    with llm.session() as session:
        first = session.send("Hello.", **options).result()
        second = session.send("And?", **options).result()
        plain = session.send("Well?", max_tokens=3).result()
    assert first.logprobs == chat.logprobs == llm.chat_many([messages], **options)[0].logprobs
    assert [entry.id for entry in second.logprobs] == second.ids
    assert plain.logprobs == []


class Interrupted(list[int]):
    """Ids that Ctrl-C keeps from being as many as they were to be."""

    def append(self, id_: int) -> None:
        if len(self) == 2:
            raise KeyboardInterrupt
        super().append(id_)


def test_ctrl_c_leaves_as_many_as_ids() -> None:
    llm = LLM(fakes.fake_model())
    stream = llm.stream("hello", logprobs=1)
    stream.completion.ids = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        stream.result()
    assert len(stream.completion.ids) == len(stream.completion.logprobs) == 2


def test_a_model_has_no_say_in_whether_there_are_any(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, data = "generation_config.json", json.dumps({"logprobs": "many", "top_k": 7}).encode()
    with edgerun.load(altered(resolve(None), tmp_path / "b", name, data)) as llm:
        assert dict(llm.model.sampling_defaults) == {"top_k": 7}
        assert llm.params().logprobs is None
    assert caplog.messages == []


def test_the_bytes_of_tokens_join_to_those_of_the_text(llm: LLM) -> None:
    reply = llm.generate(PROMPT, temperature=0, max_tokens=20, logprobs=0)
    spelt = b"".join(llm.tokenizer.token_bytes(entry.id) for entry in reply.logprobs)
    assert spelt.decode() == reply.text
