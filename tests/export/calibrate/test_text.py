import time
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import InputError
from edgerun.model.text.tokenizer import Tokenizer
from edgerun_export.calibrate.text import (
    _pieces,
    check_unseen,
    fewest_with_samples,
    read_calibration,
    read_sample,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(scope="module")
def tokenizer():
    folder = GOLDEN / "llama"
    return Tokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_windows_come_evenly_from_all_texts_and_one_in_sixteen_is_held_out(tmp_path, tokenizer):
    files = [written(tmp_path, f"{c}.txt", " ".join(f"{c}{n}" for n in range(3000))) for c in "xy"]
    text = read_calibration(files, tokenizer, 32, 64)
    assert text.names == ("x.txt", "y.txt")
    assert text.windows.shape == (32, 64)
    assert [sample.windows.shape for sample in text.samples] == [(1, 64), (1, 64)]
    start = list(tokenizer.bos_ids)
    assert all(window[: len(start)].tolist() == start for window in text.windows)
    spelled = [tokenizer.decode(window.tolist()) for window in text.windows]
    assert [sum(letter in each for each in spelled) for letter in "xy"] == [16, 16]
    for sample in text.samples:
        (window,) = sample.windows
        assert sample.bytes == sum(len(tokenizer.token_bytes(token)) for token in window[1:])
        assert window.tolist() not in text.windows.tolist()


def test_what_documents_begin_with_is_not_predicted(tmp_path, tokenizer, monkeypatch):
    """It spells nothing, and of short documents would be much of what is measured."""
    bos = 0
    monkeypatch.setattr("edgerun_export.calibrate.text._start", lambda tokenizer: [bos])
    short = written(tmp_path, "t.txt", "\n<|endoftext|>\n".join(f"cat {n}." for n in range(400)))
    sample = read_sample(short, tokenizer, 4, 64)
    text = sample.windows[:, 1:][sample.windows[:, 1:] != bos].tolist()
    assert sample.tokens == len(text) < sample.windows[:, 1:].size - 20
    assert sample.bytes == len(tokenizer.decode(text).encode())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_windows_and_no_fewer_leave_one_held_out(tmp_path, tokenizer, count):
    files = [written(tmp_path, f"{n}.txt", f"{n} words. " * 3000) for n in range(count)]
    enough = fewest_with_samples(count)
    samples = [read_calibration(files, tokenizer, n, 64).samples for n in (enough - 1, enough)]
    assert not samples[0]
    assert samples[1]


def test_the_same_text_has_the_same_digest_and_another_has_another(tmp_path, tokenizer):
    first, second = (
        written(tmp_path, n, "Some words. " * count)
        for n, count in (("a.txt", 500), ("b.txt", 501))
    )
    assert read_calibration([first], tokenizer, 4, 64).digest == (
        read_calibration([first], tokenizer, 4, 64).digest
    )
    assert read_calibration([second], tokenizer, 5, 64).digest != (
        read_calibration([first], tokenizer, 4, 64).digest
    )


def test_documents_end_at_their_separator(tmp_path, tokenizer):
    document = "Once upon a time there was a cat. " * 3
    both = written(tmp_path, "both.txt", f"{document}\n<|endoftext|>\n{document}")
    ids = tokenizer.encode(document.strip(), bos=False)
    text = read_calibration([both], tokenizer, 1, 2 * (len(ids) + len(tokenizer.bos_ids)))
    start = list(tokenizer.bos_ids)
    np.testing.assert_array_equal(
        text.windows[0], (start + start + ids + start + ids)[: text.windows.shape[1]]
    )


def test_a_long_document_is_cut_in_the_time_of_reading_it():
    text = "\n".join(f"Line {number} of many." for number in range(400_000))
    began = time.process_time()
    pieces = _pieces(text, 64)
    assert time.process_time() - began < 10  # of some tenths; a copy of all for each took a minute
    assert "".join(piece for _, piece in pieces) == text
    assert all(32 < len(piece) <= 64 for _, piece in pieces[:-1])
    assert [begins for begins, _ in pieces] == [True] + [False] * (len(pieces) - 1)


def test_all_of_a_short_text_is_used(tmp_path, tokenizer):
    text = read_calibration([written(tmp_path, "t.txt", "word " * 300)], tokenizer, 64, 64)
    assert 0 < len(text.windows) < 64


@pytest.mark.parametrize("start", [[], [0]], ids=["no bos", "bos"])
def test_of_a_text_with_hardly_enough_windows_nothing_is_lost(
    start, tmp_path, tokenizer, monkeypatch
):
    monkeypatch.setattr("edgerun_export.calibrate.text._start", lambda tokenizer: start)
    text = " ".join(f"Number {n} of many." for n in range(400))
    whole = len(tokenizer.encode(text, bos=False)) // (64 - len(start))
    file = written(tmp_path, "t.txt", text)
    windows = read_sample(file, tokenizer, 1000, 64).windows
    assert whole - 2 <= len(windows) <= whole + 2
    assert (windows[:, : len(start)] == start).all()
    spelled = tokenizer.decode(windows[:, len(start) :].ravel().tolist())
    assert text.startswith(spelled) and len(spelled) > 0.97 * len(text)
    for count in (whole - 3, whole // 2):
        assert len(read_sample(file, tokenizer, count, 64).windows) == count


def test_windows_that_hold_no_text_are_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("edgerun_export.calibrate.text._start", lambda tokenizer: [0, 1])
    text = written(tmp_path, "t.txt", "word " * 100)
    with pytest.raises(InputError, match="windows of 2 tokens hold no more than what a document"):
        read_sample(text, tokenizer, 4, 2)


def test_a_text_without_an_end_is_not_read_to_its_end(monkeypatch, tokenizer):
    monkeypatch.setattr("edgerun_export.calibrate.text._MAX_BYTES", 1000)
    with pytest.raises(InputError, match="/dev/zero is larger than 1000 bytes"):
        read_calibration([Path("/dev/zero")], tokenizer, 4, 64)


def test_bad_texts_are_refused_by_name(tmp_path, tokenizer):
    short = written(tmp_path, "short.txt", "a few words")
    with pytest.raises(InputError, match=r"short.txt has \d+ tokens, less than one window"):
        read_calibration([short], tokenizer, 4, 64)
    with pytest.raises(InputError, match=r"cannot read .*none.txt: No such file"):
        read_calibration([tmp_path / "none.txt"], tokenizer, 4, 64)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(InputError, match=r"latin.txt is not UTF-8 text \(byte 3\)"):
        read_calibration([tmp_path / "latin.txt"], tokenizer, 4, 64)


def test_characters_without_tokens_are_refused(tmp_path, monkeypatch, tokenizer):
    odd = written(tmp_path, "odd.txt", "some \u4e16 " * 100)
    token = tokenizer.encode("some", bos=False)[0]
    monkeypatch.setattr(tokenizer, "special_token", lambda role: "unk" if role == "unk" else "")
    monkeypatch.setattr(tokenizer, "token_id", lambda text: token if text == "unk" else None)
    with pytest.raises(InputError, match=r"has no tokens for some characters of .*odd.txt"):
        read_calibration([odd], tokenizer, 4, 16)


def test_text_that_weights_are_fitted_to_is_not_measured_on(tmp_path):
    train, test, copy, link = (tmp_path / name for name in ("train", "test", "copy", "link"))
    train.write_text("to fit to")
    test.write_text("to test on")
    copy.write_text("to fit to")
    link.symlink_to(train)
    check_unseen([test], [train])
    check_unseen([test, tmp_path / "missing"], [train, tmp_path / "missing"])
    for same in (train, copy, link):
        said = f"--text {same} holds the same as --calibrate {train}: weights would be measured on"
        with pytest.raises(InputError, match=said):
            check_unseen([test, same], [test.with_name("missing"), train])
