"""A model with measured rates gives what was measured, and names its sources."""

import json

import pytest

from edgerun.errors import InputError
from edgerun.state.codecs.registry import codec_named
from edgerun_hw.build.boards import board_names
from edgerun_hw.model.measured import (
    CONTEXTS,
    HOSTS,
    STORAGE,
    attention_macs,
    kv_bytes,
    measured_comparison,
    measured_terms,
)
from edgerun_hw.model.profile import FOLDER, load_profile, profile_names
from edgerun_hw.model.tokens import HEADS, SHAPES, tokens_per_second
from edgerun_hw.overlay.geometry import PRESETS

KV260, PROFILE = PRESETS["decode-300"], load_profile()
SMALL, LARGE = SHAPES["bitnet-0.73b"], SHAPES["bitnet-2b-4t"]


def terms(shape=SMALL, profile=PROFILE, clock=250.0, geometry=KV260, **options):
    return measured_terms(shape, geometry, profile, clock, **options)


def test_profile_gives_what_its_own_board_did_at_1000_tokens():
    """That design's own parts (docs/measurements.md) with our rates: 9.1 tokens/s were measured."""
    body = 417_546_240 / (PROFILE["body_gb_per_s"] * 1e9)
    attention = attention_macs(LARGE, 1000) / (PROFILE["attention_int8_gmac_per_s"] * 1e9)
    norms = LARGE.layers * LARGE.hidden * PROFILE["norm_ns_per_element"] * 1e-9
    head, glue, scan, transfers = 5.43e-3, 6.85e-3, 2.50e-3, 0.88e-3 + 0.28e-3
    total = body + attention + norms + head + glue + scan + transfers
    assert 1 / total == pytest.approx(9.1, rel=0.03)


def test_figures_follow_from_what_their_sources_say():
    per_position = attention_macs(LARGE, 1)
    assert per_position == 153_600
    seconds = (2361.8e-3 - 1399.9e-3) / 22
    assert PROFILE["attention_int8_gmac_per_s"] == pytest.approx(
        750 * per_position / seconds / 1e9, rel=0.003
    )
    assert PROFILE["body_gb_per_s"] == pytest.approx(417_546_240 / 32.799e-3 / 1e9, rel=0.001)
    assert PROFILE["head_gb_per_s"] == pytest.approx(65_667_072 / 4.113e-3 / 1e9, rel=0.01)
    assert PROFILE["norm_ns_per_element"] == pytest.approx(3.498e6 / (30 * 2560), rel=0.002)


def test_today_is_level_with_tellme_and_far_below_the_bound():
    """The finding that the profile is for; TeLLMe v2 publishes 25 tokens/s for this model."""
    assert 20 < tokens_per_second(terms(context=1024)) < 23
    assert tokens_per_second(terms(context=1024, host="python")) < 18
    (row,) = [
        row
        for row in measured_comparison(KV260, PROFILE, 250.0)
        if (row["model"], row["context"], row["head"]) == ("bitnet-0.73b", 1024, "int8")
    ]
    assert row["tokens/s, native host"] < row["bound, processor"] < row["bound, hidden"]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("host", HOSTS)
def test_every_term_says_what_it_stands_on(name, head, host):
    listed = terms(SHAPES[name], head=head, host=host)
    assert all(term.seconds > 0 and term.basis for term in listed)
    of_profile = [term for term in listed if term.name != "processor (Python)"]
    assert all("published" in term.basis or "assumed" in term.basis for term in of_profile)
    assert len({term.name for term in listed}) == len(listed)


# Of figures that count only where the overlay has a unit.
GEOMETRIES = {
    "lines_gb_per_s": PRESETS["attention-300"],
    "rotary_ns_per_element": PRESETS["layer-300"],
    "again_ns_per_element": PRESETS["layer-300"],
}


def test_each_figure_counts():
    """A figure that no term uses is no figure."""
    for name in PROFILE.figures:
        geometry = GEOMETRIES.get(name, KV260)
        usual = terms(geometry=geometry)
        if name in ("attention_fp16_gmac_per_s", "late_ports_least", "late_ports_most"):
            continue  # the first is another storage's, the others are in the body's rate
        figure = PROFILE.figures[name]
        doubled = type(figure)(2 * figure.value, figure.kind, figure.source, figure.date)
        changed = type(PROFILE)(
            *(PROFILE.name, PROFILE.board, PROFILE.title, PROFILE.source),
            {**PROFILE.figures, name: doubled},
        )
        faster = tokens_per_second(terms(profile=changed, geometry=geometry)) > tokens_per_second(
            usual
        )
        slower = tokens_per_second(terms(profile=changed, geometry=geometry)) < tokens_per_second(
            usual
        )
        assert faster if "_per_s" in name and not name.endswith("step") else slower, name


@pytest.mark.parametrize("storage", STORAGE)
def test_keys_and_values_are_what_the_cache_stores(storage):
    """Scales included: held against the codec that stores them."""
    vector = sum(array.nbytes for array in codec_named(storage).arrays(SMALL.head_dim))
    assert kv_bytes(SMALL, 100, storage) == 2 * SMALL.layers * SMALL.kv_heads * 100 * vector


def test_storage_is_named_and_wider_storage_is_slower():
    (term,) = [term for term in terms(storage="fp16") if term.name.startswith("attention")]
    assert "fp16" in term.name
    assert tokens_per_second(terms(storage="fp16")) < tokens_per_second(terms())


def test_comparison_has_every_model_context_and_head():
    rows = measured_comparison(KV260, PROFILE, 250.0)
    keys = [(row["model"], row["context"], row["head"]) for row in rows]
    assert keys == [(m, c, h) for m in SHAPES for c in CONTEXTS for h in HEADS]
    for row in rows:
        assert row["tokens/s, python host"] < row["tokens/s, native host"] < row["bound, hidden"]


# ---- profiles


@pytest.mark.parametrize("name", profile_names())
def test_profiles_are_of_boards_that_there_are(name):
    assert load_profile(name).board in board_names()


def written(tmp_path, **changes):
    record = json.loads((FOLDER / "kv260.json").read_text())
    record["figures"]["head_gb_per_s"].update(changes)
    (tmp_path / "mine.json").write_text(json.dumps(record))
    return str(tmp_path / "mine.json")


def test_profile_of_ones_own_is_read_from_its_file(tmp_path):
    profile = load_profile(written(tmp_path, value=8))
    assert (profile.name, profile["head_gb_per_s"]) == ("mine", 8.0)
    assert profile.quote("head_gb_per_s") == "8 GB/s, published"


@pytest.mark.parametrize(
    "change",
    [
        {"value": 0},
        {"value": float("nan")},
        {"value": "fast"},
        {"value": True},
        {"value": 10**400},
        {"kind": "measured"},
        {"source": " "},
        {"date": "last week"},
        {"extra": 1},
    ],
)
def test_figure_without_a_value_a_kind_a_source_or_a_date_is_refused(tmp_path, change):
    with pytest.raises(InputError, match="head_gb_per_s"):
        load_profile(written(tmp_path, **change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "must have board, title, source and figures"),
        ('{"board": 1, "title": "", "source": "", "figures": {}}', "board must be a text"),
        ('{"board": "", "title": "", "source": "", "figures": {"x": 1}}', "body_gb_per_s"),
        ('{"board": "", "title": "", "source": "", "figures": []}', "lacks figures"),
    ],
)
def test_file_that_is_no_profile_is_refused(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_profile(str(tmp_path / "x.json"))


def test_profile_that_is_not_there_names_those_that_are():
    with pytest.raises(InputError, match="there are kv260"):
        load_profile("kv261")
    with pytest.raises(InputError, match="there is no file nowhere.json"):
        load_profile("nowhere.json")


def test_attention_on_the_fabric_is_a_term_of_its_own_and_reads_what_the_unit_reads():
    attending = PRESETS["attention-300"]
    for name in SHAPES:
        shape = SHAPES[name]
        terms = measured_terms(shape, attending, PROFILE, 250.0, context=1024)
        (attention,) = [term for term in terms if term.name == "attention (fabric)"]
        # Each read of keys and values is what is stored, and what is passed over at both ends.
        reads = -(-shape.heads // shape.kv_heads // attending.attention)
        stored = reads * kv_bytes(shape, 1024, "int8")
        assert 0.95 * stored < attention.nbytes < 1.1 * stored
        old = tokens_per_second(measured_terms(shape, PRESETS["decode-300"], PROFILE, 250.0))
        assert tokens_per_second(terms) > 1.5 * old


def test_a_unit_without_int8_keys_and_values_is_of_no_use():
    options = {"context": 1024, "storage": "fp16"}
    shape = SHAPES["bitnet-0.73b"]
    with_unit, without = (
        measured_terms(shape, PRESETS[name], PROFILE, 250.0, **options)
        for name in ("attention-300", "decode-300")
    )
    assert with_unit == without
