"""A thread that reads streams, on the fake model of ``tests/support/fakes.py``."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from edgerun.errors import BackendError, InputError
from edgerun.llm.llm import LLM
from edgerun.llm.pump import Piece, Pump
from edgerun.llm.replies.stream import TextStream
from tests.llm.test_llm import Broken, model
from tests.server.served import Paced, until
from tests.support import fakes


class Heard:
    """What a pump handed over."""

    def __init__(self) -> None:
        self.texts: dict[TextStream, str] = defaultdict(str)
        self.tokens: dict[TextStream, list[int]] = defaultdict(list)
        self.ended: set[TextStream] = set()
        self.threads: set[int] = set()

    def __call__(self, pieces: list[Piece]) -> None:
        self.threads.add(threading.get_ident())
        assert pieces
        for stream, part, tokens, is_last in pieces:
            assert stream not in self.ended, "something came behind the last piece"
            assert any(part) or is_last
            self.texts[stream] += part.text
            self.tokens[stream].append(tokens)
            if is_last:
                self.ended.add(stream)

    def wait(self, streams: list[TextStream]) -> None:
        until(lambda: self.ended >= set(streams))


def test_streams_that_come_at_any_time_say_what_they_say_alone() -> None:
    heard, sampling = Heard(), {"temperature": 1.5, "max_tokens": 9}
    with model(max_sessions=3) as llm:
        pump = Pump(llm, heard)
        streams: list[TextStream] = []
        for seed in range(12):
            streams.append(llm.stream("once", seed=seed, **sampling))
            pump.add(streams[-1:])
        heard.wait(streams)
        pump.close()
        for seed, stream in enumerate(streams):
            expected = llm.generate("once", seed=seed, **sampling)
            assert heard.texts[stream] == stream.completion.text == expected.text
            assert heard.tokens[stream] == sorted(heard.tokens[stream])
            assert heard.tokens[stream][-1] == len(expected.ids)
    assert heard.threads.isdisjoint({threading.get_ident()}) and len(heard.threads) == 1


def test_what_fails_ends_alone() -> None:
    heard = Heard()
    with LLM(fakes.fake_model(Broken("q"))) as llm:
        pump = Pump(llm, heard)
        streams = [llm.stream(text, max_tokens=5) for text in ("a", "q", "b")]
        pump.add(streams)
        heard.wait(streams)
        reasons = [stream.completion.finish_reason for stream in streams]
        assert reasons == ["length", "error", "length"]
        assert isinstance(streams[1].completion.error, BackendError)
        again = llm.stream("b", max_tokens=5)
        pump.add([again])
        heard.wait([again])
        assert again.completion.text == streams[2].completion.text
        pump.close()


def test_a_model_that_is_closed_ends_all_and_the_pump_lives_on() -> None:
    heard, executable = Heard(), Paced()
    llm = LLM(fakes.fake_model(executable))
    pump = Pump(llm, heard)
    streams = [llm.stream("a"), llm.stream("b")]
    pump.add(streams)
    executable.let(3)
    closing = threading.Thread(target=llm.close)
    closing.start()
    until(lambda: executable.let(1) or heard.ended >= set(streams))
    closing.join()
    assert all(isinstance(stream.completion.error, InputError) for stream in streams)
    pump.close()


def test_cancelling_and_closing_end_streams() -> None:
    heard, executable = Heard(), Paced()
    with LLM(fakes.fake_model(executable)) as llm:
        room = llm._engine.room()
        pump = Pump(llm, heard)
        streams = [llm.stream("a"), llm.stream("b")]
        pump.add(streams)
        executable.let(6)
        until(lambda: bool(heard.texts[streams[1]]))
        pump.cancel(streams[0])
        until(lambda: executable.let(1) or streams[0] in heard.ended)
        assert streams[0].completion.finish_reason == "cancelled"
        assert streams[1] not in heard.ended
        executable.let()
        pump.close()
        assert streams[1] in heard.ended
        assert llm._engine.room() == room
        with pytest.raises(InputError, match="no longer served"):
            pump.add([llm.stream("c")])


def test_a_stream_may_be_cancelled_before_it_is_read() -> None:
    heard = Heard()
    with model() as llm:
        pump = Pump(llm, heard)
        stream = llm.stream("a")
        pump.cancel(stream)
        pump.add([stream])
        heard.wait([stream])
        assert (stream.completion.finish_reason, stream.completion.text) == ("cancelled", "")
        pump.close()


def test_how_tokens_are_spelled_is_known_before_a_stream_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sandbox, which knows it, may be busy with somebody's prompt for seconds."""
    asked, heard = [], Heard()
    tokenizer = fakes.byte_tokenizer()
    library = tokenizer._library

    def tokens(start: int, stop: int) -> list[str | None]:
        asked.append(threading.current_thread())
        return spelled(start, stop)

    spelled = library.tokens
    monkeypatch.setattr(library, "tokens", tokens)
    monkeypatch.setattr(fakes, "VOCAB", tokenizer.vocab_size + 1000)
    with model(tokenizer=tokenizer) as llm:
        pump = Pump(llm, heard)
        assert len(asked) == 1
        stream = llm.stream("once", max_tokens=3)
        pump.add([stream])
        heard.wait([stream])
        assert heard.texts[stream]
        tokenizer.token_bytes(fakes.VOCAB - 1)
        assert tokenizer.fewest_tokens("once" * 1000)
        pump.close()
    assert asked == [threading.current_thread()]


def test_streams_of_another_model_are_refused() -> None:
    def heard(pieces: Any) -> None:
        raise AssertionError(pieces)

    with model() as llm, model() as other:
        pump = Pump(llm, heard)
        with pytest.raises(InputError, match="another model's"):
            pump.add([llm.stream("a"), other.stream("a")])
        pump.close()


def test_a_pump_that_cannot_hand_over_ends_its_streams_and_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deliver(pieces: list[Piece]) -> None:
        raise KeyError("whose?")

    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with model(max_sessions=2) as llm:
        pump = Pump(llm, deliver)
        pump.add([llm.stream("once"), llm.stream("a"), llm.stream("cat")])
        until(lambda: not pump._thread.is_alive())
        assert raised[0].exc_type is KeyError
        with pytest.raises(InputError, match="no longer served"):
            pump.add([llm.stream("once")])
        pump.close()
        assert llm.generate("once", max_tokens=2).text  # whose turn it is
        assert llm._engine.room().slots == 2
