"""The web console: for now one self-contained page that shows the next windows."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

PAGE = files(__name__).joinpath("page.html").read_bytes()
HEADERS = {
    # The page brings its own style and script and talks to its own server only.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    """The console."""
    return Response(PAGE, headers=HEADERS, media_type="text/html")
