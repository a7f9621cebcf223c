"""What is derived from the sampling options is up to date, and mistakes in them are named."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from edgerun.engine.chooser import processor
from edgerun.engine.chooser.option import Switch, option
from edgerun.engine.chooser.params import SamplingParams, all_options
from edgerun.engine.chooser.processor import StatelessProcessor, processor_types
from edgerun.engine.sampling.temperature import Temperature
from edgerun.errors import SamplingError
from tools.ci import sampling_options


@dataclass(frozen=True)
class Another(StatelessProcessor):
    order: ClassVar[int] = 31
    another: bool = option(False, Switch(), "Nothing.")


def test_the_derived_files_are_up_to_date(repo_root: Path) -> None:
    """``python -m tools.ci.sampling_options`` writes them."""
    page = (repo_root / sampling_options.PAGE).read_text("utf-8")
    assert (repo_root / sampling_options.KEYWORDS).read_text("utf-8") == sampling_options.keywords()
    assert page == sampling_options.page(page)
    assert all(f"| `{entry.name}` |" in page for entry in all_options())


def test_defaults_pass_their_own_checks_and_do_nothing() -> None:
    for entry in all_options():
        assert entry.kind.check(entry.name, entry.default) == entry.default
    assert not any(each.is_active for each in SamplingParams().processors)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_numbers_that_no_float_can_hold_are_refused(value: int) -> None:
    with pytest.raises(SamplingError, match="temperature is .*; expected a number from 0 to 100"):
        SamplingParams(temperature=value)
    with pytest.raises(SamplingError, match="logit_bias of id 7"):
        SamplingParams(logit_bias={7: value})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.5", 0.5),
        ("top_k", "40", 40),
        ("seed", "7", 7),
        ("stop", "a,b", ("a,b",)),
        ("stop_ids", "5,7", (5, 7)),
        ("ignore_eos", "on", True),
        ("ignore_eos", "False", False),
        ("ignore_eos", "yes", True),
        ("ignore_eos", "no", False),
        ("logit_bias", "13=-5,7=2.5", {13: -5.0, 7: 2.5}),
        ("dry_sequence_breakers", r'["\n", "a,b"]', ("\n", "a,b")),
        ("dry_sequence_breakers", "[]", ()),
    ],
)
def test_values_may_be_typed(name: str, text: str, value: Any) -> None:
    entry = next(entry for entry in all_options() if entry.name == name)
    read = entry.kind.check(name, entry.read(text))
    assert read == value
    assert entry.kind.check(name, entry.read(entry.kind.write(read))) == value
    assert SamplingParams(**{name: value}).values()[name] == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("temperature", "hot", "temperature is 'hot'; expected a number from 0 to 100"),
        ("top_k", "1.5", "top_k is '1.5'; expected a whole number from 0"),
        ("stop_ids", "5,x", "stop_ids is '5,x'; expected at most 1024 token ids, as in 5,7"),
        ("ignore_eos", "maybe", "ignore_eos is 'maybe'; expected True or False"),
        ("dry_sequence_breakers", "[x", "'[x'; expected a list of texts, as in ["),
        ("dry_sequence_breakers", "[" * 100_000, "expected a list of texts"),
        ("dry_sequence_breakers", "x", "'x'; expected a list of texts, as in ["),
        ("dry_sequence_breakers", '"x"', "expected a list of texts"),
        ("dry_sequence_breakers", '{"a": 1}', "expected a list of texts"),
        ("logit_bias", "13", "expected numbers from -100 to 100 by token id, as in 13=-5"),
    ],
)
def test_typed_nonsense_is_refused(name: str, text: str, words: str) -> None:
    entry = next(entry for entry in all_options() if entry.name == name)
    with pytest.raises(SamplingError) as refusal:
        entry.read(text)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temprature": 1}, "no sampling parameter 'temprature': did you mean 'temperature'?"),
        ({"processors": Temperature()}, "expected a list of processors"),
        ({"processors": [Temperature]}, "processors holds <class"),
        ({"processors": [Temperature()], "top_k": 3}, "top_k is given beside a list of processors"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SamplingError) as refusal:
        SamplingParams(**given)
    assert words in str(refusal.value)


def test_ids_that_end_a_reply_are_few() -> None:
    assert len(SamplingParams(stop_ids=range(1024)).stop_ids) == 1024
    for ids in (range(1025), [5] * 500_000, itertools.count()):
        with pytest.raises(SamplingError, match="stop_ids has more than 1024 token ids; expected"):
            SamplingParams(stop_ids=ids)


def test_a_list_of_processors_may_stand_beside_what_ends_a_reply() -> None:
    params = SamplingParams(processors=[Temperature(temperature=0)], max_tokens=3, stop="x")
    assert params.is_greedy
    assert (params.max_tokens, params.stop) == (3, ("x",))
    assert params == SamplingParams(
        processors=(Temperature(temperature=0.0),), max_tokens=3, stop="x"
    )


def test_params_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().max_tokens = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Temperature().temperature = 5  # type: ignore[misc]


@pytest.mark.parametrize(("field", "value"), [("order", 30), ("another", "temperature")])
def test_two_processors_of_one_place_or_name_are_refused(
    monkeypatch: pytest.MonkeyPatch, field: str, value: Any
) -> None:
    kind: Any = Another
    if field == "order":
        kind = type("Twin", (Another,), {"order": value})
    else:
        monkeypatch.setattr(Another, "options", Temperature.options)
    entries = {"temperature": Temperature, "another": kind}
    monkeypatch.setattr(processor, "entries", lambda room, attribute: entries)
    with pytest.raises(ValueError, match=f"two sampling processors have the .* {value}"):
        processor_types.__wrapped__()
