"""`/docs`: the API to read and to try out. Swagger UI comes from an installed package, never from another host: scripts
on this page have its reader's rights."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from paceline.server.console.files import HEADERS, TYPES, File, answer

PACKAGE = "fastapi_offline"
"""Ships Swagger UI's files."""
FENCE = {
    **HEADERS,
    # Swagger UI needs inline styles and creates markup, from our own document.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>paceline: the API</title>
<link rel="icon" href="console/icon.svg">
<link rel="stylesheet" href="console/docs/swagger-ui.css">
<div id="api"></div>
<script src="console/docs/swagger-ui-bundle.js"></script>
<script src="console/docs/start.js"></script>
</html>
"""
START = b"""SwaggerUIBundle({ url: "openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null });
"""

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def page(request: Request) -> Response:
    """The page."""
    return answer(request, File.of(PAGE, TYPES[".html"]), FENCE)


# Not async: the first request waits in a thread while a large file is compressed.
@router.get("/console/docs/{name}")
def file(request: Request, name: str) -> Response:
    """One of the files the page is made of."""
    known = _file(name) if name in ("swagger-ui.css", "swagger-ui-bundle.js", "start.js") else None
    if known is None:
        raise HTTPException(404)
    return answer(request, known, FENCE)


@cache
def _file(name: str) -> File | None:
    media_type = TYPES[name[name.rindex(".") :]]
    if name == "start.js":
        return File.of(START, media_type)
    # Located, not imported: its code is not needed.
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        return None
    return File.of((Path(package.origin).parent / "static" / name).read_bytes(), media_type)
