"""What a board takes, now and again before every load: trusted, unaltered, not older."""

import json
import os
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.application.manifest import MANIFEST, SIGNATURE
from edgerun_hw.deploy.broker.application.store import KEPT
from edgerun_hw.deploy.broker.board.loader import FIRMWARE
from edgerun_hw.deploy.broker.board.policy import KEYS, SETTINGS, Policy
from edgerun_hw.deploy.broker.errors import BrokerError, RefusalError
from edgerun_hw.deploy.broker.session import boot
from edgerun_hw.deploy.emulate.board import Faults, make_root, power_cycle, set_faults
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay, sample_package
from tests.hw.deploy.harness import (
    KV260,
    LOADERS,
    ROLLBACK,
    Files,
    Quick,
    ask,
    board,
    converse,
    deploy,
    digest_of,
    running,
)

NAME = "edgerun-tlmm"


@pytest.fixture(scope="module")
def key():
    module = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    return module.Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def pem(key) -> bytes:
    from cryptography.hazmat.primitives import serialization as to

    return key.public_key().public_bytes(to.Encoding.PEM, to.PublicFormat.SubjectPublicKeyInfo)


def signed(key, files: Files) -> dict[str, bytes]:
    return {**files, SIGNATURE: key.sign(files[MANIFEST])}


def release(number: int, seed: int | None = None) -> dict[str, bytes]:
    bit = example_bit(KV260, number if seed is None else seed)
    return sample_package(bit, release=number)


def strict(root: Path, pem: bytes | None, **settings: object) -> None:
    """Makes a board take what is signed by ``pem`` only."""
    (root / SETTINGS).write_text(json.dumps(settings))
    if pem is not None:
        (root / KEYS).write_bytes(pem)


def refused(root: Path, files: Files) -> str:
    result = deploy(root, files)
    assert result.error is not None and result.error["code"] == "refused", result
    return str(result.error["message"])


@pytest.mark.parametrize("settings", [None, "{}", '{"allow_unsigned": false}'])
def test_board_without_keys_takes_nothing_unless_its_owner_allows_it(
    tmp_path: Path, first, settings: str | None
) -> None:
    make_root(tmp_path)
    (tmp_path / SETTINGS).unlink()
    if settings is not None:
        (tmp_path / SETTINGS).write_text(settings)
    message = refused(tmp_path, first)
    assert f"/{KEYS}" in message and f"/{SETTINGS}" in message
    assert not (tmp_path / "lib/firmware/edgerun").exists()  # said before anything is sent
    (tmp_path / SETTINGS).write_text('{"allow_unsigned": true}')
    assert deploy(tmp_path, first).is_confirmed


def test_permission_does_not_weaken_keys(tmp_path: Path, first, key, pem) -> None:
    make_root(tmp_path)
    strict(tmp_path, pem, allow_unsigned=True)
    assert "is not signed" in refused(tmp_path, first)
    assert deploy(tmp_path, signed(key, first)).is_confirmed


@pytest.mark.parametrize("file", [KEYS, SETTINGS])
@pytest.mark.parametrize("how", ["writable", "folder", "pipe", "link", "garbage", "owner"])
def test_file_that_others_could_have_written_stops_everything(
    tmp_path: Path, first, pem, file: str, how: str
) -> None:
    make_root(tmp_path)
    place = tmp_path / file
    content = {KEYS: pem, SETTINGS: b'{"allow_unsigned": true}'}[file]
    place.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(place)
    elif how == "link":
        place.with_name("elsewhere").write_bytes(content)
        place.symlink_to(place.with_name("elsewhere"))
    else:
        place.write_bytes(b"garbage" if how == "garbage" else content)
    if how == "writable":
        place.chmod(0o664)
    elif how == "folder":
        place.parent.chmod(0o777)
    elif how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(place, 12345, 12345)
    result = deploy(tmp_path, first)
    assert result.error and f"/{file} is unusable" in result.error["message"]
    assert running(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"allow_unsigned": 1}', "'allow_unsigned' is unknown or has a value of the wrong kind"),
        ('{"allow_unsinged": true}', "'allow_unsinged' is unknown"),
        ('{"board": "kr260"}', "names the board 'kr260': there are kv260"),
        ('{"board": "kv260", "board": "kv260"}', "stands twice"),
        ("[]", "not a JSON object"),
    ],
)
def test_settings_are_read_strictly(tmp_path: Path, first, settings: str, message: str) -> None:
    make_root(tmp_path)
    (tmp_path / SETTINGS).write_text(settings)
    result = deploy(tmp_path, first)
    assert result.error and message in result.error["message"]


# ---- before every load


def alter(folder: Path, name: str) -> None:
    """Changes a bit, as a failing card or somebody with root's rights would."""
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)


def package_folder(root: Path, files: Files) -> Path:
    return root / KEPT / digest_of(files)


@LOADERS
@pytest.mark.parametrize("name", [f"{NAME}.bit.bin", f"{NAME}.dtbo", "shell.json"])
def test_rollback_to_altered_files_is_refused_while_the_other_runs(
    tmp_path: Path, first, second, xmutil: bool, name: str
) -> None:
    root = board(tmp_path, xmutil, first, second)
    alter(package_folder(root, first), name)
    result = converse(root, ROLLBACK)
    assert result.error and result.error["code"] == "refused"
    assert f"{name} is not what the manifest says" in result.error["message"]
    assert running(root) == digest_of(second)
    assert not any(line.startswith("run") for line in result.actions)  # never unloaded


@LOADERS
def test_files_added_to_an_application_are_refused(
    tmp_path: Path, first, second, xmutil: bool
) -> None:
    """dfx-mgr loads whatever file of a folder ends in .bit.bin."""
    root = board(tmp_path, xmutil, first, second)
    (package_folder(root, first) / "another.bit.bin").write_bytes(b"x")
    result = converse(root, ROLLBACK)
    assert result.error and "the files are not" in result.error["message"]


@LOADERS
def test_start_of_the_board_loads_no_altered_files(tmp_path: Path, first, xmutil: bool) -> None:
    root = board(tmp_path, xmutil, first)
    power_cycle(root)
    alter(root / FIRMWARE / NAME, f"{NAME}.bit.bin")
    with pytest.raises(RefusalError, match="cannot be loaded: .* not what the manifest says"):
        boot(Quick(root))
    assert running_nothing(root)


def running_nothing(root: Path) -> bool:
    logic = root / ".emulator/logic.json"
    return not logic.exists() or json.loads(logic.read_text())["loaded"] is None


def test_start_of_the_board_asks_who_has_signed(tmp_path: Path, first, key, pem) -> None:
    root = board(tmp_path, True, first)
    power_cycle(root)
    strict(root, pem)
    with pytest.raises(RefusalError, match="this one is not signed"):
        boot(Quick(root))
    assert running_nothing(root)
    (root / FIRMWARE / NAME / SIGNATURE).write_bytes(key.sign(first[MANIFEST]))
    assert NAME in boot(Quick(root))
    assert running(root) == digest_of(first)


def test_rollback_asks_who_has_signed(tmp_path: Path, first, second, key, pem) -> None:
    root = board(tmp_path, True, first)
    strict(root, pem)
    assert deploy(root, signed(key, second)).is_confirmed
    result = converse(root, ROLLBACK)
    assert result.error and "this one is not signed" in result.error["message"]
    assert running(root) == digest_of(second)


def test_failed_deployment_goes_back_to_signed_files_only(
    tmp_path: Path, first, second, key, pem
) -> None:
    """What ran unsigned before there were keys does not come back, and that is said."""
    root = board(tmp_path, True, first)
    strict(root, pem)
    set_faults(root, Faults(logic="dead", only=digest_of(second)))
    result = deploy(root, signed(key, second))
    assert result.error is not None
    assert "this one is not signed" in result.answers[-1]["broken"]
    assert ask(root, "status")["interrupted"]
    strict(root, pem)
    (root / FIRMWARE / NAME / SIGNATURE).write_bytes(key.sign(first[MANIFEST]))
    assert ask(root, "rollback", by="test")["done"] and running(root) == digest_of(first)


def test_application_of_somebody_else_does_not_come_back_under_keys(
    tmp_path: Path, first, pem
) -> None:
    root = board(tmp_path)
    other = root / FIRMWARE / "k26-starter-kits"
    other.mkdir()
    (other / "kits.bit.bin").write_bytes(first[f"{NAME}.bit.bin"])
    (other / "kits.dtbo").write_bytes(sample_overlay("kits.bit.bin"))
    (other / "shell.json").write_text("{}")
    Quick(root).run("/usr/bin/xmutil", "loadapp", other.name)
    assert deploy(root, first).is_confirmed
    strict(root, pem)
    result = converse(root, ROLLBACK)
    assert result.error and "this one is not signed" in result.error["message"]
    assert running(root) == digest_of(first)


# ---- releases


def test_older_releases_are_refused_under_keys(tmp_path: Path, key, pem) -> None:
    make_root(tmp_path)
    strict(tmp_path, pem)
    for number in (3, 5, 5):
        assert deploy(tmp_path, signed(key, release(number))).is_confirmed
    assert "is release 4, and this board has confirmed release 5" in refused(
        tmp_path, signed(key, release(4))
    )
    assert deploy(tmp_path, signed(key, release(5, seed=9))).is_confirmed
    assert deploy(tmp_path, signed(key, release(6))).is_confirmed
    result = converse(tmp_path, ROLLBACK)  # to 5, which was confirmed before 6
    assert result.error and '{"allow_older": true}' in result.error["message"]
    assert running(tmp_path) == digest_of(release(6))
    strict(tmp_path, pem, allow_older=True)
    assert converse(tmp_path, ROLLBACK).is_confirmed
    assert running(tmp_path) == digest_of(release(5, seed=9))
    strict(tmp_path, pem)
    assert "release 6" in refused(tmp_path, signed(key, release(4)))  # the floor stays
    power_cycle(tmp_path)
    assert NAME in boot(Quick(tmp_path))


def test_release_that_was_not_confirmed_does_not_count(tmp_path: Path, key, pem) -> None:
    make_root(tmp_path)
    strict(tmp_path, pem)
    assert deploy(tmp_path, signed(key, release(1))).is_confirmed
    newer = signed(key, release(9))
    set_faults(tmp_path, Faults(logic="dead", only=digest_of(newer)))
    assert deploy(tmp_path, newer).error
    assert running(tmp_path) == digest_of(release(1))
    assert deploy(tmp_path, signed(key, release(2))).is_confirmed


def test_without_keys_releases_say_nothing(tmp_path: Path) -> None:
    """Or whoever may deploy could lock everybody out with a high number."""
    make_root(tmp_path)
    for number in ((1 << 31) - 1, 0):
        assert deploy(tmp_path, release(number)).is_confirmed
    assert converse(tmp_path, ROLLBACK).is_confirmed


def test_policy_without_anything_takes_nothing() -> None:
    with pytest.raises(BrokerError, match="no trusted keys"):
        Policy().check_signature(b"", None)
