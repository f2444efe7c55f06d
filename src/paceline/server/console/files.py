"""The console's files in the package, and their security headers."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from paceline.errors import ConfigurationError
from paceline.server.apps import GROUP, installed_apps

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS = {
    # Its own scripts and styles as files, its own server, and nothing else: no inline code, no other host, no frame.
    # Trusted types forbid scripts to turn text into markup, so what a caller stored can't become part of the page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Revalidated each time, and answered with 304 while unchanged: a new release shows at once.
    "Cache-Control": "no-cache",
}


class File(NamedTuple):
    """A file of the console."""

    body: bytes
    packed: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, body: bytes, media_type: str) -> File:
        return cls(body, gzip.compress(body, mtime=0), media_type, hashlib.sha256(body).hexdigest()[:32])


def _load(folder: Traversable) -> dict[str, File]:
    loaded = {}
    for entry in folder.iterdir():
        if entry.is_file():
            _, dot, suffix = entry.name.rpartition(".")
            loaded[entry.name] = File.of(entry.read_bytes(), TYPES[dot + suffix])
    return loaded


_STATIC = files(__package__).joinpath("static")
VENDOR = _load(_STATIC.joinpath("vendor"))
"""Unmodified third-party libraries, with their licences."""


@cache
def console_files() -> dict[str, File]:
    """The console's files, and those of the applications.

    Raises:
        ConfigurationError: Two have the same name.
    """
    loaded = _load(_STATIC)
    for app in installed_apps():
        if app.pages is not None:
            package, _, folder = app.pages.partition(":")
            own = _load(files(package).joinpath(folder))
            if twice := sorted(own.keys() & loaded.keys()):
                raise ConfigurationError(GROUP, f"{app.name} and another have a console file {twice[0]}")
            loaded |= own
    return loaded


router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """The console."""
    return answer(request, console_files()["console.html"])


@router.get("/console/pages")
async def pages() -> list[str]:
    """The scripts of the applications' pages."""
    return [script for app in installed_apps() for script in app.page_scripts]


@router.get("/console/{name}")
async def file(request: Request, name: str) -> Response:
    """One of the page's files."""
    if name not in console_files():
        raise HTTPException(404)
    return answer(request, console_files()[name])


@router.get("/console/vendor/{name}")
async def library(request: Request, name: str) -> Response:
    """A library that the page uses."""
    if name not in VENDOR:
        raise HTTPException(404)
    return answer(request, VENDOR[name])


def answer(request: Request, file: File, fence: Mapping[str, str] = HEADERS) -> Response:
    """The file, compressed if the browser accepts that, or 304 if it is cached."""
    packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {**fence, "ETag": f'"{file.tag}{"-gzip" if packed else ""}"', "Vary": "Accept-Encoding"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if packed:
        return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.media_type)
    return Response(file.body, headers=headers, media_type=file.media_type)
