"""Rules by path, and what was logged of those that match no route."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from paceline import FixedWindow, Plan
from paceline.integrations.asgi import PathRule, everyone

PLANS = [Plan("logins", FixedWindow(limit=1, window="PT1H"))]


def rule(pattern: str = "/login", **options: Any) -> PathRule:
    return PathRule(pattern, "logins", key=everyone("all"), **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "paceline.integrations" and record.levelno == logging.WARNING
    ]
