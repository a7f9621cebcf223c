"""The page for browsers: three files that need nothing else."""

from __future__ import annotations

import re

import pytest

from edgerun.server.page import FILES, page
from tests.server.served import Served, served


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "html"), ("/chat.css", "css"), ("/chat.js", "javascript")]
)
def test_its_files_are_there_for_anybody_and_load_nothing_from_elsewhere(
    client: Served, path: str, kind: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"text/{kind}; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert not re.search(
        r"https?:|//[a-z]", re.sub(r"^ *//.*$", "", answer.text, flags=re.MULTILINE)
    )


def test_a_server_with_a_key_shows_it_without() -> None:
    with served(key="0123456789abcdef") as client:
        assert client.get("/").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_all_that_it_names_exists() -> None:
    html, script = (page(path)[0].decode() for path in ("/", "/chat.js"))
    for name in re.findall(r'(?:href|src)="([^"]+)"', html):
        assert name == "data:," or f"/{name}" in FILES
    for name in re.findall(r'\$\("([^"]+)"\)', script):
        assert f'id="{name}"' in html


def test_text_of_models_is_never_markup() -> None:
    script = page("/chat.js")[0].decode()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in script
