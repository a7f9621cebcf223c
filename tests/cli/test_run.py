"""``edgerun run`` is a contract that scripts rely on."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from edgerun.cli.prompt import gather, model_and_text
from edgerun.llm.loading import Model
from tests.cli.conftest import Run
from tests.llm.test_infilling import AFTER, BEFORE, GAP, filler
from tests.support import fakes


def chat_prompt(content: str, system: str = "") -> str:
    parts = [("system", system)] if system else []
    parts.append(("user", content))
    text = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in parts)
    return f"<|bos|>{text}<|im_start|>assistant\n"


def saying(text: str, content: str = "hi", system: str = "") -> Model:
    ids = fakes.byte_tokenizer().encode_template(chat_prompt(content, system))
    return fakes.fake_model(fakes.saying(text, len(ids)))


def continuing(text: str, prompt: str = "hi") -> Model:
    count = len(fakes.byte_tokenizer().encode(prompt))
    return fakes.fake_model(fakes.saying(text, count), template=None)


def test_thoughts_cannot_be_hidden_where_they_are_a_field(run: Run) -> None:
    result = run("run", "--json", "--hide-thinking", "-p", "hi")
    assert (result.code, result.out) == (2, "")
    assert "leave --hide-thinking out" in result.err


def test_the_reply_goes_to_stdout_and_nothing_else_does(run: Run) -> None:
    result = run("run", "-p", "hi", model=saying("héllo 😀"))
    assert (result.code, result.out, result.err) == (0, "héllo 😀\n", "")


@pytest.mark.parametrize("text", ["Once upon a time. " * 20, "nul\0l"])
def test_a_text_may_be_what_no_file_can_be_called(run: Run, text: str) -> None:
    result = run("run", text, "--raw", model=continuing("yes", text))
    assert (result.code, result.out, result.err) == (0, "yes\n", "")


def test_a_gap_is_filled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with filler(monkeypatch) as llm:
        arguments = ("-p", BEFORE, "--suffix", AFTER, "--temperature", "0")
        result = run("run", *arguments, model=llm.model)
    assert (result.code, result.out, result.err) == (0, f"{GAP}\n", "")


def test_a_gap_may_be_where_a_text_begins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with filler(monkeypatch) as llm:
        result = run("run", "-p", "", "--suffix", AFTER, "-n", "3", model=llm.model)
    assert (result.code, result.err) == (0, "")


def test_json_is_one_object_with_the_agreed_names(run: Run) -> None:
    result = run("run", "m", "-p", "hi", "-n", "3", "--json", model=saying("hello"))
    report = json.loads(result.out)
    assert report["text"] == "hel"
    assert report["ids"] == list(b"hel")
    assert (report["completion_tokens"], report["finish_reason"]) == (3, "length")
    assert report["prompt_tokens"] == len(fakes.byte_tokenizer().encode_template(chat_prompt("hi")))
    assert set(report["timings"]) == {
        "first_token_s",
        "prefill_s",
        "decode_s",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "drafted_tokens",
        "accepted_tokens",
    }


def test_json_has_log_probabilities_if_they_are_asked_for(run: Run) -> None:
    arguments = ["run", "-p", "hi", "-n", "3", "--json", "--logprobs"]
    report = json.loads(run(*arguments, "2", model=saying("hé")).out)
    entries = report["logprobs"]
    assert [entry["id"] for entry in entries] == report["ids"] == list("hé".encode())
    assert [entry["text"] for entry in entries] == [
        "h",
        "\ufffd",
        "\ufffd",
    ]  # halves of a character
    for entry in entries:
        assert list(entry) == ["id", "text", "logprob", "top"]
        likeliest, other = entry["top"]
        assert likeliest == {name: entry[name] for name in ("id", "text", "logprob")}
        assert (other["id"], other["text"]) == (0, "\0")
        assert entry["logprob"] > other["logprob"]
    without = json.loads(run(*arguments, "0", model=saying("hi")).out)["logprobs"]
    assert [entry["top"] for entry in without] == [[], []]
    assert json.loads(run(*arguments, "1", model=saying("")).out)["logprobs"] == []


def test_the_prompt_is_a_users_message_for_a_chat_model(run: Run) -> None:
    model = saying("fine", "how are you", "be brief")
    assert run("run", "-p", "how are you", "--system", "be brief", model=model).out == "fine\n"


def test_a_template_is_told_what_was_asked_for(run: Run) -> None:
    values = ["--template-value", "effort=high", "--template-value", 'limit={"words": 5}']
    assert run("run", "-p", "hi", "--no-think", *values, model=saying("yes")).code == 0
    assert run.asked.options.think is False
    assert run.asked.options.template_values == {"effort": "high", "limit": {"words": 5}}


def test_raw_continues_the_text(run: Run) -> None:
    model = saying("no")
    model.programs = continuing("yes").programs
    assert run("run", "-p", "hi", "--raw", model=model).out == "yes\n"
    assert run("run", "-p", "hi", "--raw", "--draft", "none", model=continuing("yes")).code == 0


def test_a_base_model_continues_the_text(run: Run) -> None:
    assert run("run", "-p", "hi", model=continuing(" there")).out == " there\n"


@pytest.mark.parametrize("arguments", [["run"], ["run", "-p", "-"]])
def test_the_prompt_comes_from_a_pipe(run: Run, arguments: list[str]) -> None:
    assert run(*arguments, model=saying("yes"), stdin=b"hi\n").out == "yes\n"


@pytest.mark.parametrize("arguments", [["-p", "Sum up:"], ["Sum up:"]])
def test_a_pipe_goes_behind_the_text_after_a_blank_line(run: Run, arguments: list[str]) -> None:
    model = saying("yes", "Sum up:\n\none\ntwo")
    assert run("run", *arguments, model=model, stdin=b"one\ntwo\n").out == "yes\n"


@pytest.mark.parametrize("stdin", [b"", b"\n", None])
def test_a_pipe_with_nothing_adds_nothing(run: Run, stdin: bytes | None) -> None:
    assert run("run", "-p", "hi", model=saying("yes"), stdin=stdin).out == "yes\n"


def test_a_folder_is_the_model_and_other_words_the_text(run: Run, tmp_path: Path) -> None:
    folder = str(tmp_path)
    for words in (["hi"], [folder, "hi"], ["hi", folder], ["-m", folder, "hi"], ["hi", "-m", "x"]):
        result = run("run", *words, model=saying("yes"))
        assert (result.out, result.err) == ("yes\n", ""), words
        asked = words[words.index("-m") + 1] if "-m" in words else folder
        assert run.asked.path == (Path(asked) if len(words) > 1 else None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3.2"], "there is no model at llama3.2: name"),
        (["qwen2:0.5b"], "there is no model at"),
        (["./nowhere"], "there is no model at"),
        (["user/name"], "there is no model at"),
        (["my-model"], "there is no model at"),
        ([__file__], "is no model: expected the folder of a bundle"),
        (["a", "b"], "neither 'a' nor 'b' is one"),
        (["./my-model", "hi"], "there is no model at my-model: give"),
        (["Say hi.", "llama3.gguf"], "there is no model at llama3.gguf: give"),
        (["no-such", __file__], "there is no model at no-such: give"),
        (["Say hi.", __file__], "is no model: expected the folder of a bundle"),
        (["/", "/"], "both are models"),
        (["/", "-m", "x"], "two models are named, / and x"),
        (["hi", "/", "-p", "x"], "the text is given twice"),
    ],
)
def test_words_that_may_mean_two_things_are_refused(
    run: Run, words: list[str], message: str
) -> None:
    result = run("run", *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err


def test_a_file_of_weights_is_the_model_that_was_meant(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(b"GGU")
    for words in ([str(path), "hi"], ["read-me", str(path)]):
        result = run("run", *words)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert "new.gguf does not begin with 'GGUF', so it is no GGUF file" in result.err


def test_only_names_of_the_hub_are_models_of_it(tmp_path: Path) -> None:
    asked = model_and_text([str(tmp_path), "hf: what is this"], None, None)
    assert asked == (tmp_path, "hf: what is this")
    assert model_and_text(["hf:owner/name", "hi"], None, None) == (Path("hf:owner/name"), "hi")


@pytest.mark.parametrize("text", ["Hello.", "What's", "你好", "2+2=?", "Tell me 3", "and/or what"])
def test_a_text_is_no_model(text: str) -> None:
    assert model_and_text([text], None, None) == (None, text)


@pytest.mark.parametrize(
    "alias",
    [
        ["--temp", "0", "--num-predict", "3"],
        ["--temperature", "0", "--n-predict", "3"],
        ["-n", "3", "-t", "1", "-c", "64"],
        ["--max_tokens", "3", "--num_thread", "1", "--ctx-size", "64", "--repeat-penalty", "1"],
    ],
)
def test_options_may_be_spelt_as_elsewhere(run: Run, alias: list[str]) -> None:
    assert run("run", "hi", *alias, model=saying("hello")).out == "hel\n"


@pytest.mark.skipif(sys.platform == "win32", reason="select on a pipe")
def test_a_pipe_that_nobody_writes_to_is_said_to_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("edgerun.cli.prompt.PATIENCE_S", 0.01)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        threading.Timer(0.2, os.close, [writing]).start()
        assert gather("hi") == "hi"
    assert "reading stdin until it ends" in capsys.readouterr().err


def test_stop_texts_end_the_reply(run: Run) -> None:
    arguments = ["run", "-p", "hi", "--stop", "xyz", "--stop", "lo"]
    assert run(*arguments, model=saying("hello")).out == "hel\n"


def test_everything_that_chooses_is_an_option(run: Run) -> None:
    """Those that name tokens are written as `/set` of a chat takes them."""
    arguments = ["run", "-p", "hi", "-n", "3", "--temperature", "0"]
    assert run(*arguments, "--logit-bias", "120=100,121=50", model=saying("hello")).out == "xxx\n"
    assert run(*arguments, "--stop-ids", "120,108", model=saying("hello")).out == "he\n"
    dry = ["--dry-multiplier", "50", "--dry-allowed-length", "1", "--dry-sequence-breakers"]
    for breakers, text in (("[]", False), ('["l"]', True)):
        reply = run(*arguments, *dry, breakers, model=saying("lll")).out
        assert (reply == "lll\n") == text
    for more, count in (([], 1), (["--ignore-eos"], 3)):
        report = json.loads(run(*arguments, "--json", *more, model=saying("h")).out)
        assert len(report["ids"]) == count


def test_replies_follow_a_schema_a_regular_expression_or_a_grammar(
    run: Run, tmp_path: Path
) -> None:
    """The model says something else, of which the reply has what is allowed."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text('{"const": {"a": ["hello", 1]}}')
    grammar.write_text('root ::= "h" [a-f] "llo" "!"?')
    arguments = ["run", "-p", "hi", "--temperature", "0"]
    for more, text in (
        (["--json-schema", str(schema)], '{"a":["hello",1]}\n'),
        (["--json-schema", '{"enum": ["x", "hello"]}', "--json"], '"hello"'),
        (["--regex", "[hx]el+o"], "hello\n"),
        (["--grammar", str(grammar)], "hello\n"),
    ):
        result = run(*arguments, *more, model=saying("hello" if "--json" not in more else '"hello'))
        assert result.code == 0, result.err
        out = json.loads(result.out)["text"] if "--json" in more else result.out
        assert (out, result.err) == (text, "")


def test_stats_go_to_stderr(run: Run) -> None:
    result = run("run", "-p", "hi", "--stats", model=saying("hello"))
    assert result.out == "hello\n"
    for word in ("first token", "prefill", "decode", "weights", "memory"):
        assert word in result.err


def test_a_reply_that_is_cut_says_so(run: Run) -> None:
    full = run("run", "-p", "hi", model=fakes.fake_model(template=None, context=64))
    assert "the context is full" in full.err
    long = run("run", "-p", "hi", model=fakes.fake_model(template=None, context=4096))
    assert "after 512 tokens; -n sets the limit" in long.err
    assert run("run", "-p", "hi", "-n", "3", model=fakes.fake_model(template=None)).err == ""


def test_a_seed_repeats_the_reply(run: Run) -> None:
    arguments = ["run", "-p", "hi", "-n", "20", "--temperature", "5", "--seed"]
    first, second, other = (run(*arguments, seed).out for seed in ("1", "1", "2"))
    assert first == second != other


MISTAKES = [
    (["-p", ""], "the prompt is empty"),
    (["-p", "x", "--temperature", "nan"], "temperature is nan"),
    (["-p", "x", "--temperature", "-1"], "temperature is -1"),
    (["-p", "x", "--temperature", "hot"], "--temperature"),
    (["-p", "x", "-n", "0"], "-n is 0"),
    (["-p", "x", "-n", "99999999999999"], "-n is 99999999999999"),
    (["-p", "x", "--top-k", "-1"], "--top-k is -1"),
    (["-p", "x", "--logit-bias", "5"], "--logit-bias is '5'; expected numbers from -100 to 100"),
    (["-p", "x", "--logit-bias", "999999=1"], "--logit-bias names id 999999; the vocabulary ends"),
    (
        ["-p", "x", "--dry-sequence-breakers", "x"],
        "--dry-sequence-breakers is 'x'; expected a list",
    ),
    (["-p", "x", "--stop-ids", "5,x"], "--stop-ids is '5,x'; expected at most 1024 token ids"),
    (["-p", "x", "--top-p", "0"], "--top-p is 0"),
    (["-p", "x", "--min-p", "2"], "--min-p is 2"),
    (["-p", "x", "--repetition-penalty", "0"], "--repetition-penalty is 0"),
    (["-p", "x", "--seed", "-1"], "seed is -1"),
    (["-p", "x", "--threads", "0"], "--threads is 0"),
    (["-p", "x", "--kv-cache", "fp8"], "--kv-cache is 'fp8'"),
    (["-p", "x", "--logprobs", "3"], "--logprobs is for the object that --json prints: add --json"),
    (["-p", "x", "--json", "--logprobs", "21"], "logprobs is 21; expected a whole number from 0"),
    (["-p", "x", "--stop", ""], "stop holds an empty text"),
    (["-p", "x", "--regex", "("], "regex is '(': unclosed group; expected a regular expression"),
    (
        ["-p", "x", "--regex", "a", "--json-schema", "true"],
        "--json-schema and --regex are both given: leave",
    ),
    (["-p", "x", "--json-schema", "{"], "--json-schema is '{', which is not JSON"),
    (["-p", "x", "--json-schema", "none.json"], "'none.json' cannot be read: No such file"),
    (["-p", "x", "--grammar", "~nobody_here/g"], "begins with the home folder of nobody here"),
    (["-p", "x", "--grammar", "."], "'.' cannot be read: Is a directory; expected a file with a"),
    (["-p", "x", "--frobnicate"], "--frobnicate"),
    (["-p", "x" * 600], "tokens and the context is 512"),
    (["-p", "x", "--raw", "--system", "y"], "leave --raw out"),
    (["-p", "x", "--raw", "--no-think"], "leave --raw out"),
    (["-p", "x", "--suffix", "y", "--system", "z"], "leave --suffix out"),
    (["-p", "x", "--suffix", "y", "--no-think"], "leave --suffix out"),
    (["-p", "x", "--suffix", "y"], "no control tokens that say where a gap in a text is"),
    (["-p", "x", "--template-value", "effort"], "--template-value effort: the name has no value"),
    (["-p", "x", *["--template-value", "effort=1"] * 2], "effort=1: the name is there twice"),
    (["-p", "x", "--template-value", f"effort={100_000 * chr(91)}"], "effort: lists in lists"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(
    run: Run, arguments: list[str], words: str
) -> None:
    result = run("run", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert result.err.startswith("edgerun: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("stdin", "words"), [(b"", "empty"), (b"\n", "empty"), (None, "no prompt"), (b"\xff", "UTF-8")]
)
def test_an_unusable_pipe_is_a_mistake(run: Run, stdin: bytes | None, words: str) -> None:
    result = run("run", stdin=stdin)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_a_model_that_thinks_has_no_limit_of_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thoughts are long: an answer would be cut off that nobody has seen."""
    monkeypatch.setattr("edgerun.cli.run.DEFAULT_MAX_TOKENS", 8)
    thinking = fakes.CHATML + "{# </think> #}"
    ids = fakes.byte_tokenizer().encode_template(chat_prompt("hi"))
    reply = "<think>So it is</think>Hello!"
    tokens = [fakes.THINK, *reply.removeprefix("<think>").encode(), fakes.END]
    script = {len(ids) + place: id_ for place, id_ in enumerate(tokens)}

    def asked(*arguments: str) -> tuple[str, str]:
        model = fakes.fake_model(fakes.FakeExecutable(script), template=thinking)
        result = run("run", "-p", "hi", *arguments, model=model)
        return result.out, result.err

    assert asked() == ("Hello!\n", "")
    assert asked("-n", "8") == ("\n", "")
    assert "-n sets the limit" in asked("--raw")[1]
