"""Replies that are drafted, with real programs: the same ids, whatever layers keep."""

from __future__ import annotations

import random
from typing import Any

import pytest

import edgerun
from edgerun.backends.base import FEW_ROWS
from edgerun.cli.screen.report import stats_lines
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.drafting.base import Draft, Drafter
from edgerun.engine.drafting.drafting import Drafting
from edgerun.engine.engine import Engine
from edgerun.engine.stats import Stats
from edgerun.errors import InputError, UnsupportedError
from edgerun.kernels.isa import selected_isa
from edgerun.llm.llm import LLM
from edgerun.state import SequenceStore
from tests.support.bundles import bundle_of

PROMPT = [1 + place * 7 % 200 for place in range(50)]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 5, "ignore_eos": True, "max_tokens": 78}
# Windows, convolutions, sinks and experts, latent rows, bounded scores, layers that share keys.
MODELS = [
    ("llama", "ternary", {"kv_cache": "int8"}),
    ("gemma3_text", "int4", {}),
    ("lfm2", "int8", {}),
    ("gpt_oss", "int4", {}),
    ("deepseek_v3", "fp32", {}),
    ("gemma2", "int4", {"kv_cache": "fp32"}),
    ("gemma3n_text", "int4", {}),
    ("qwen3_moe", "int4", {"expert_memory": "40%"}),
    ("qwen3_next", "int4", {}),
]


class Half(Drafter):
    """Drafts what will be said, of which about one id in eight is altered."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.rng = ids, random.Random(3)

    def draft(self, ids: list[int], most: int) -> Draft | None:
        right = self.ids[len(ids) - len(PROMPT) :][:most]
        altered = [id_ if self.rng.random() < 0.88 else (id_ + 1) % 200 for id_ in right]
        return Draft(altered, 0, 0.5) if altered else None


class Goes(Drafter):
    """Drafts what will be said."""

    def __init__(self, ids: list[int], prompt_tokens: int) -> None:
        self.ids, self.prompt_tokens = ids, prompt_tokens

    def draft(self, ids: list[int], most: int) -> Draft | None:
        following = self.ids[len(ids) - self.prompt_tokens :][:most]
        return Draft(following, 0, 0.5) if following else None


class Eager:
    """Takes every draft."""

    def add(self, rows: int, seconds: float) -> None:
        pass

    def best(self, drafted: int, likelihood: float, rows: int = 1, **kept: bool) -> int:
        return drafted


def plain(llm: LLM, params: SamplingParams) -> list[int]:
    """A reply without drafts."""
    engine = engine_of(llm, None)
    return [token.id for token in engine.tokens(engine.sequence(PROMPT, params))]


def engine_of(llm: LLM, drafting: Drafting | None) -> Engine:
    model = llm.model
    return Engine(
        model.programs,
        SequenceStore(model.states, model.context),
        model.vocab_size,
        chunk_rows=model.chunk_rows,
        drafting=drafting,
    )


@pytest.mark.parametrize(("name", "weights", "options"), MODELS)
def test_drafts_change_no_reply(name: str, weights: str, options: dict[str, Any]) -> None:
    path = bundle_of(name, weights=weights)
    with edgerun.load(path, backend="cpu", context=128, **options) as llm:
        params = llm.params(**SAMPLED)
        expected = plain(llm, params)
        assert llm.model.drafting is not None
        takes_back = llm.model.drafting.takes_back
        assert takes_back == (name != "qwen3_next")
        drafting: Any = Drafting(lambda: Half(expected), takes_back=takes_back)
        drafting.pace = Eager()
        engine = engine_of(llm, drafting)
        sequence = engine.sequence(PROMPT, params)
        assert [token.id for token in engine.tokens(sequence)] == expected
    stats = sequence.stats
    assert 0.4 < stats.accepted_tokens / stats.drafted_tokens < 1
    assert stats.decode_steps < 45


def test_a_program_for_drafts_is_compiled_with_the_first() -> None:
    """And not before: most short prompts are not worth it."""
    with edgerun.load(bundle_of("llama", weights="int4"), backend="cpu", draft="none") as llm:
        params = llm.params(max_tokens=30, temperature=0, ignore_eos=True)
        whole = llm.generate([5], max_tokens=30, temperature=0, ignore_eos=True).ids
        (few,) = (each for shape, each in llm.model.programs._compiled if shape.rows == FEW_ROWS)
        drafting: Any = Drafting(lambda: Goes(whole, 1))
        drafting.pace = Eager()
        engine = engine_of(llm, drafting)
        sequence = engine.sequence([5], params)
        tokens = engine.tokens(sequence)
        next(tokens)
        assert not few.is_due
        assert [token.id for token in tokens] == whole[1:]
        runs = llm.model.programs.launches["few"].runs
        assert runs == sequence.stats.decode_steps  # each was drafted, the first of them too


def test_sessions_and_replies_say_what_they_say_without() -> None:
    """With lookup as it is, whose drafts depend on the machine's pace; what is said does not."""
    texts = {}
    for draft in ("none", "lookup"):
        with edgerun.load(draft=draft) as llm, llm.session() as session:
            replies = [session.send(text, seed=2) for text in ("Tell me of a cat.", "Go on.")]
            many = llm.generate_many(["Once", "A dog"], max_tokens=20, seed=1)
            texts[draft] = [str(reply) for reply in (*replies, *many)]
            story = llm.generate("Tim said hi. Tim said hi. Tim said", temperature=0, max_tokens=60)
            texts[draft].append(str(story))
            lines = "\n".join(stats_lines(llm, story.stats))
            drafted = story.stats.drafted_tokens
            right = f"drafts       {story.stats.accepted_tokens} of {drafted} tokens right"
            assert (right in lines) == (drafted > 0)
            assert draft == "lookup" or not drafted
    assert texts["none"] == texts["lookup"]


def test_tokens_behind_a_stop_text_are_not_of_the_completion() -> None:
    with edgerun.load() as llm:
        whole = llm.generate("Tim said", temperature=0, max_tokens=40)
        drafting: Any = Drafting(lambda: Goes(whole.ids, whole.prompt_tokens))
        drafting.pace = Eager()
        llm._engine._drafting = drafting
        end = llm.tokenizer.decode(whole.ids[:10])
        short = llm.generate("Tim said", temperature=0, max_tokens=40, stop=[end])
    assert short.text == ""
    assert short.ids == whole.ids[:10]
    assert short.stats.accepted_tokens > 10
    assert short.stats.completion_tokens == 10


def test_a_drafter_that_was_asked_for_is_refused_where_it_cannot_be() -> None:
    path = bundle_of("llama", weights="fp32")
    with pytest.raises(UnsupportedError, match="draft is 'lookup', and replies cannot .* bits"):
        edgerun.load(path, draft="lookup", backend="reference")
    with edgerun.load(path, backend="reference") as llm:  # nobody asked
        assert llm.generate([5, 6, 5, 6], max_tokens=5, temperature=0).stats.drafted_tokens == 0


@pytest.mark.skipif(not selected_isa().regroups, reason="nothing is faster by it here")
@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_nothing_is_drafted_where_prompts_have_other_bits_than_replies(name: str) -> None:
    """What a reply that ended early leaves to the prompt behind it would depend on drafts."""
    path = bundle_of(name, weights="int4")
    with pytest.raises(UnsupportedError, match="draft is 'lookup', and replies cannot be drafted"):
        edgerun.load(path, draft="lookup", backend="cpu", prefill="fast")
    with edgerun.load(path, backend="cpu", prefill="fast") as llm:
        assert not llm.model.programs.has_rows_alike


@pytest.mark.parametrize("draft", ["mtp", "", None, 3])
def test_other_drafters_are_refused(draft: Any) -> None:
    with pytest.raises(InputError, match="^draft is .*; expected one of auto, lookup, none$"):
        edgerun.load(draft=draft)


def test_weights_are_read_call_by_call() -> None:
    with edgerun.load(draft="none") as llm:
        stats = Stats(prompt_tokens=9, decode_steps=10, accepted_tokens=30, decode_s=2.0)
        lines = "\n".join(stats_lines(llm, stats))
        assert "decode       20.0 tokens/s" in lines
        assert f"weights      {5 * llm.model.weight_bytes / 1e9:.2f} GB/s" in lines
