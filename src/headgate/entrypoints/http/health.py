"""`/health`: is the process alive, and does what it depends on answer?"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from headgate.entrypoints.http import schemas
from headgate.entrypoints.http.services import Probe, services
from headgate.errors import HeadgateError

PATIENCE_SECONDS = 2.0
"""A dependency that takes longer counts as down."""

router = APIRouter(tags=["health"])
_DOWN: dict[int | str, dict[str, Any]] = {503: {"description": "A dependency does not answer", "model": schemas.Health}}


@router.get("/health/live", summary="Is the process alive?", response_model=schemas.Health)
@router.get("/q/health/live", include_in_schema=False)
async def live() -> Response:
    """UP, as long as the process answers at all."""
    return _answer([])


@router.get("/health/ready", summary="Can it serve?", response_model=schemas.Health, responses=_DOWN)
@router.get("/q/health/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """UP if every dependency answers; otherwise 503, telling which one does not."""
    probes = services(request).probes
    return _answer(await asyncio.gather(*(_checked(name, probe) for name, probe in probes.items())))


async def _checked(name: str, probe: Probe) -> dict[str, object]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await probe()
    except TimeoutError:
        reason = f"no answer within {PATIENCE_SECONDS} s"
    except HeadgateError as error:
        # The class, not the text: a driver's text may name hosts and users, and this path asks for no token.
        reason = type(error).__name__
    else:
        return {"name": name, "status": "UP"}
    return {"name": name, "status": "DOWN", "data": {"reason": reason}}


def _answer(checks: list[dict[str, object]]) -> Response:
    up = all(check["status"] == "UP" for check in checks)
    body = orjson.dumps({"status": "UP" if up else "DOWN", "checks": checks})
    return Response(body, 200 if up else 503, media_type="application/json")
