"""The Python API, on the fake model of ``tests/support/fakes.py``."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import edgerun
from edgerun.engine.sampling.top_p import TopP
from edgerun.errors import BackendError, BundleError, InputError, PromptError, SamplingError
from edgerun.kernels.host.cores import cores
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.llm.options import LoadOptions
from edgerun.llm.replies.completion import Writer
from edgerun.llm.replies.stream import TextStream
from tests.support import fakes


def saying(text: str, prompt: str = "hi", **options: Any) -> LLM:
    count = len(fakes.byte_tokenizer().encode(prompt))
    return LLM(fakes.fake_model(fakes.saying(text, count), **options))


def model(**options: Any) -> LLM:
    return LLM(fakes.fake_model(**options))


def test_a_completion_has_text_ids_and_reason() -> None:
    completion = saying("héllo 😀").generate("hi")
    assert completion.text == str(completion) == "héllo 😀"
    assert completion.ids == list("héllo 😀".encode())
    assert (completion.prompt_tokens, completion.finish_reason) == (3, "stop")


def test_a_stream_joins_to_the_completion() -> None:
    pieces = list(saying("héllo 😀").stream("hi"))
    assert pieces == ["h", "é", "l", "l", "o", " ", "😀"]


def test_a_reply_cut_inside_a_character_ends_with_a_replacement_character() -> None:
    completion = saying("a😀").generate("hi", max_tokens=3)
    assert (completion.text, completion.finish_reason) == ("a\ufffd", "length")


@pytest.mark.parametrize("stop", ["lo", ["xyz", "lo"], "😀"])
def test_stop_texts_are_never_shown(stop: Any) -> None:
    stream = saying("hello 😀 more").stream("hi", stop=stop)
    text = "".join(stream)
    assert text == ("hello " if stop == "😀" else "hel")
    assert stream.completion.text == text
    assert stream.completion.finish_reason == "stop"


def test_the_beginning_of_a_stop_text_is_shown_when_the_reply_ends_there() -> None:
    assert saying("one tw").generate("hi", stop="two").text == "one tw"


def test_ids_are_a_prompt_too() -> None:
    ids = fakes.byte_tokenizer().encode("hi")
    assert saying("yes").generate(ids).text == "yes"


def test_control_tokens_in_a_prompt_are_text() -> None:
    stats = model().generate("<|im_end|>", max_tokens=1)
    assert stats.prompt_tokens == 1 + len("<|im_end|>")


def test_a_closed_stream_stops_and_the_next_prompt_still_works() -> None:
    llm = model()
    whole = llm.generate("hello", max_tokens=9).text
    stream = llm.stream("hello", max_tokens=9)
    first = next(stream)
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    assert whole.startswith(first)
    assert llm.generate("hello", max_tokens=9).text == whole
    assert llm.generate("hello", max_tokens=9).stats.reused_tokens == 5


def test_two_streams_of_one_model_do_not_mix() -> None:
    llm = model(max_sessions=2)
    first, second = llm.stream("a", max_tokens=5), llm.stream("b", max_tokens=5)
    pieces = [next(first), next(second)]
    third = llm.generate("c", max_tokens=5)  # while both others have begun
    assert pieces[0] + "".join(first) == llm.generate("a", max_tokens=5).text
    assert pieces[1] + "".join(second) == llm.generate("b", max_tokens=5).text
    assert third.ids == llm.generate("c", max_tokens=5).ids


def test_the_models_recommendation_holds_unless_overridden() -> None:
    llm = model(sampling_defaults={"temperature": 0.0, "top_k": 5})
    assert llm.params().values()["top_k"] == 5
    assert llm.params(top_k=7).values()["top_k"] == 7
    assert llm.params(processors=[TopP(top_p=0.5)]).processors == (TopP(top_p=0.5),)


@pytest.mark.parametrize(
    ("sampling", "error", "words"),
    [
        ({"temprature": 1}, SamplingError, "did you mean 'temperature'"),
        ({"temperature": -1}, SamplingError, "from 0 to 100"),
        ({"max_tokens": 0}, SamplingError, "max_tokens is 0"),
        ({"max_tokens": 10**5000}, SamplingError, "max_tokens is <a whole number of 16610 bits>"),
        ({"stop": ["x", ""]}, SamplingError, "stop holds an empty text; expected 1 to 4096"),
    ],
)
def test_sampling_mistakes_are_named(sampling: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        model().generate("x", **sampling)


def test_a_number_that_python_does_not_write_is_no_token() -> None:
    with pytest.raises(PromptError, match="holds token id <a whole number of 16610 bits>; the"):
        model().generate([10**5000])


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_an_error(prompt: Any) -> None:
    with pytest.raises(PromptError, match="empty"):
        model().generate(prompt)


@pytest.mark.parametrize("length", [62, 63, 64, 65, 66])
def test_prompts_are_used_whole_or_refused_with_both_counts(length: int) -> None:
    llm = model(context=64)
    text = "x" * (length - 1)  # and bos
    if length < 64:
        assert llm.generate(text).prompt_tokens == length
    else:
        with pytest.raises(PromptError, match=f"{length} tokens and the context is 64") as refusal:
            llm.generate(text)
        assert (refusal.value.tokens, refusal.value.context) == (length, 64)


def test_a_context_of_one_token_says_what_it_takes() -> None:
    with pytest.raises(PromptError, match="a context of 2 or more"):
        model(context=1).generate([7])
    with pytest.raises(PromptError, match="a context of 2 or more"):
        "".join(model(context=1).session().send("hi"))
    assert model(context=2).generate([7]).finish_reason == "context"


def test_an_instruction_set_that_is_not_there_is_refused_before_anything_runs() -> None:
    script = "import edgerun; edgerun.load()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "EDGERUN_ISA": "mmx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InputError: EDGERUN_ISA is 'mmx', but this machine can run: " in done.stderr


def test_chat_renders_the_template() -> None:
    llm = model()
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    text = (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    expected = llm.tokenizer.encode_template("<|bos|>" + text)
    assert llm.chat(messages, max_tokens=3).prompt_tokens == len(expected)
    assert llm.chat(messages, max_tokens=3).ids == llm.generate(expected, max_tokens=3).ids


def test_without_a_template_a_chat_stops_at_the_next_speaker() -> None:
    llm = model(template=None)
    assert not llm.has_chat_template
    assert llm.chat_params(stop="x").stop == ("x", "\nUser:", "\nSystem:")
    many = [f"stop {number}" for number in range(64)]
    assert len(llm.chat_params(stop=many).for_replies(2)[0].stop) == 66
    with pytest.raises(SamplingError, match=r"stop has 65 texts .*; expected at most 64"):
        llm.chat_params(stop=[*many, "x"])


def test_closing_releases_the_programs_once_each() -> None:
    executable = fakes.FakeExecutable()
    with LLM(fakes.fake_model(executable)):
        pass
    assert executable.closed == 1


def test_a_model_that_is_forgotten_releases_what_it_holds() -> None:
    executable = fakes.FakeExecutable()
    closed: list[str] = []
    whole = fakes.fake_model(executable)
    whole.owned.callback(closed.append, "back-end")
    llm = LLM(whole)
    del whole
    stream = llm.stream("hello", max_tokens=3)
    next(stream)
    del llm
    assert (executable.closed, closed) == (0, [])
    assert len(stream.result().ids) == 3
    del stream
    gc.collect()
    assert (executable.closed, closed) == (1, ["back-end"])


@pytest.mark.skipif(cores().logical < 2, reason="one core has no worker threads")
@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_a_model_leaves_no_thread(how: str) -> None:
    before = set(threading.enumerate())
    llm = edgerun.load(threads=2)
    llm.generate("Once", max_tokens=2)
    started = set(threading.enumerate()) - before
    workers = [thread for thread in started if thread.name.startswith("edgerun-")]
    assert len(workers) == 1
    if how == "closed":
        llm.close()
    else:
        del llm
        gc.collect()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()


def test_a_closed_model_says_so() -> None:
    llm = model()
    chat = llm.session()
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("x"), lambda: chat.send("x").result()):
        with pytest.raises(InputError, match="this model is closed: load it again"):
            use()


class Broken(fakes.FakeExecutable):
    """Computes NaN: always, or behind prompts in which a letter is."""

    def __init__(self, letter: str = "") -> None:
        super().__init__()
        self.letter = letter
        self.broken: set[int] = set()

    def __call__(self, batch: Any, cache: Any, values: Any = None) -> Any:
        result = super().__call__(batch, cache)
        for id_, slot in zip(batch.ids.tolist(), batch.sequences.tolist(), strict=True):
            if not self.letter or id_ == ord(self.letter):
                self.broken.add(slot)
        for index, slot in enumerate(batch.sequences[batch.logit_rows].tolist()):
            if slot in self.broken:
                result["logits"][index] = float("nan")
        return result


def test_nan_logits_are_a_backend_error_and_not_a_reply() -> None:
    chat = LLM(fakes.fake_model(Broken())).session()
    stream = chat.send("x")
    with pytest.raises(BackendError, match="nan"):
        stream.result()
    assert stream.completion.finish_reason == "error"
    assert chat.messages == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_cache": "fp8"}, "kv_cache is 'fp8'; expected one of fp16, fp32, int4, int8"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 1000}, "threads is 1000, but this process may use only"),
        ({"context": 0}, "context is 0"),
        ({"context": -1}, "context is -1"),
        ({"thread": 1}, "did you mean 'threads'"),
    ],
)
def test_load_options_are_checked_before_the_model_is_read(options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        edgerun.load("nowhere", **options)


def test_a_missing_bundle_and_a_missing_default_are_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BundleError, match="nowhere"):
        edgerun.load("nowhere")
    monkeypatch.setattr(
        "edgerun.llm.loading.__file__", str(tmp_path / "edgerun" / "llm" / "loading.py")
    )
    with pytest.raises(BundleError, match="no default model"):
        resolve(None)
    (tmp_path / "models" / "default" / "bundle").mkdir(parents=True)
    assert resolve(None) == tmp_path / "models" / "default" / "bundle"


def test_threads_come_from_the_caller_first() -> None:
    assert LoadOptions(threads=1).worker_threads == 1
    assert LoadOptions().worker_threads >= 1


def test_importing_edgerun_is_cheap() -> None:
    script = "import sys, edgerun; print(len({'numpy', 'numba', 'typer'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"


def test_a_stream_that_another_thread_closes_ends_for_its_reader() -> None:
    llm = model(context=4096)
    stream = llm.stream("hello", ignore_eos=True)
    pieces = [next(stream)]
    reader = threading.Thread(target=lambda: pieces.extend(stream), daemon=True)
    reader.start()
    while len(pieces) < 3:
        time.sleep(1e-3)
    stream.close()
    reader.join(60)
    assert not reader.is_alive()
    assert stream.completion.finish_reason == "cancelled"
    assert "".join(pieces) == stream.completion.text
    assert llm._engine.room().slots == 4


def test_a_stream_that_is_closed_while_its_reader_waits_computes_no_more() -> None:
    executable = fakes.FakeExecutable()
    llm = LLM(fakes.fake_model(executable))
    stream = llm.stream("hello", ignore_eos=True)
    next(stream)
    before = len(executable.rows)
    threads = [threading.Thread(target=use) for use in (lambda: list(stream), stream.close)]

    def hold() -> None:
        for thread in threads:
            thread.start()
            time.sleep(0.05)

    llm._store.lock.run(hold)
    for thread in threads:
        thread.join(60)
    assert len(executable.rows) == before
    assert stream.completion.finish_reason == "cancelled"


def test_a_stream_may_be_closed_by_the_reader_itself_in_the_middle_of_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a signal handler does."""
    llm = model()
    stream = llm.stream("hello", ignore_eos=True)
    push = Writer.push

    def close_and_push(self: Writer, step: Any) -> str:
        stream.close()
        return push(self, step)

    monkeypatch.setattr(Writer, "push", close_and_push)
    assert len(list(stream)) == 1
    assert stream.completion.finish_reason == "cancelled"


def test_a_stream_is_read_once_by_all_its_readers() -> None:
    llm = model(context=1024)
    expected = list(llm.stream("hello", max_tokens=200, ignore_eos=True))
    stream, pieces = llm.stream("hello", max_tokens=200, ignore_eos=True), []
    readers = [threading.Thread(target=lambda: pieces.extend(stream)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(pieces) == sorted(expected)
    assert stream.completion.text == "".join(expected)


def test_a_stream_closed_before_it_began_says_so() -> None:
    stream = model().stream("hello")
    stream.close()
    assert list(stream) == []
    assert stream.completion.finish_reason == "cancelled"


def test_a_result_that_is_interrupted_gives_its_sequence_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = model()
    read = TextStream._next

    def interrupted(self: TextStream) -> str:
        if len(self.completion.ids) == 2:
            raise KeyboardInterrupt
        return read(self)

    monkeypatch.setattr(TextStream, "_next", interrupted)
    with pytest.raises(KeyboardInterrupt) as excinfo:  # as a notebook keeps the last traceback
        llm.generate("hello")
    assert excinfo.tb is not None
    assert llm._engine.room().slots == 4
