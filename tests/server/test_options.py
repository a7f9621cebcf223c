"""Where a server listens, and to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import InputError
from edgerun.llm.llm import LLM
from edgerun.server.app import Server
from edgerun.server.options import ServerOptions
from edgerun.server.serving import address_of, listen
from tests.support import fakes

KEY = "0123456789abcdef"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_this_machine_may_call_without_a_key(host: str) -> None:
    assert ServerOptions(host=host).key is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_others_may_not(host: str) -> None:
    with pytest.raises(InputError, match="callers need a key"):
        ServerOptions(host=host)
    assert ServerOptions(host=host, key=KEY)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": KEY[1:]}, "15 characters"),
        ({"key": ""}, "0 characters"),
        ({"key": KEY + " "}, "without spaces"),
        ({"key": KEY + "é"}, "printable"),
        ({"port": -1}, "0 to 65535"),
        ({"port": 65536}, "0 to 65535"),
        ({"queue": -1}, "queue is -1; expected 0 to 10000 places"),
        ({"queue": 10_001}, "queue is 10001; expected"),
        ({"origins": ["example.org"]}, "https://example.org"),
        ({"origins": ["*"]}, "is none"),
        ({"origins": ["https://"]}, "is none"),
        ({"origins": ["https://example.org/path"]}, "is none"),
        ({"hosts": ["example.org:80"]}, "without a port"),
        ({"hosts": [""]}, "no name of a host"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ServerOptions(**options)


def test_a_model_is_called_as_its_folder_whichever_path_leads_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    with LLM(fakes.fake_model(path=Path())) as llm:
        assert Server(llm, ServerOptions()).name == "my-model"
        assert Server(llm, ServerOptions(name="other")).name == "other"


def test_an_address_is_taken_once() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert address_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match=f"port {port}: Address already in use"):
            listen("127.0.0.1", port)
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 300])
def test_no_address_of_this_machine_is_a_sentence(host: str) -> None:
    with pytest.raises(InputError, match="cannot listen at"):
        listen(host, 0)
