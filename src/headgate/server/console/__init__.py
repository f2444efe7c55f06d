"""The web console at `/`: one page, a few small scripts, and the login. All it shows comes over the public HTTP API."""

from __future__ import annotations

from fastapi import APIRouter

from headgate.server.console import files, login, numbers, oidc, pages, reference, stream

router = APIRouter()
router.include_router(login.router)
router.include_router(oidc.router)
router.include_router(numbers.router)
router.include_router(pages.router)
router.include_router(stream.router)
router.include_router(files.router)
router.include_router(reference.router)
