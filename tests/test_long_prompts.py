"""What cannot fit the context by its length alone is refused before it is encoded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgerun.errors import PromptError
from edgerun.llm import LLM
from tests import fakes

LONG = "a" * 20_000_000
CALLS: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate(LONG),
    "generate_many": lambda llm: llm.generate_many(["a", LONG]),
    "stream": lambda llm: llm.stream(LONG),
    "chat": lambda llm: llm.chat([{"role": "user", "content": LONG}]),
    "send": lambda llm: llm.session().send(LONG),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_fit_is_never_encoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(fakes.fake_model()) as llm:
        monkeypatch.setattr(llm.tokenizer, "_encode_plain", lambda text, first: list(text[:100]))
        with pytest.raises(PromptError, match="has 20000000 bytes, which are at least") as caught:
            CALLS[name](llm)
        assert caught.value.context == llm.model.context
