"""A page to chat with the model in a browser: three files, which load nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {"/": "index.html", "/chat.css": "chat.css", "/chat.js": "chat.js"}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


@cache
def page(path: str) -> tuple[bytes, str]:
    """A file of the page by its path in ``FILES``, and its type."""
    file = Path(__file__).with_name(FILES[path])
    return file.read_bytes(), f"{KINDS[file.suffix]}; charset=utf-8"
