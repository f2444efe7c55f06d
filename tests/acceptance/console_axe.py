"""axe-core, which finds what a page of the console lacks for those who can't see, or use no mouse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / ".venv" / "javascript" / "node_modules" / "axe-core" / "axe.min.js"


def require_axe() -> None:
    if not AXE.exists():
        reason = "axe-core is not installed: make lint installs it, with npm"
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)


def violations(page: Page, name: str) -> list[str]:
    """The violations that axe finds on the page now."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    # Else it describes each element that passed a rule, too, at the length of several pages.
    options = {"runOnly": tags, "resultTypes": ["violations"]}
    found = page.evaluate("async options => (await axe.run(document, options)).violations", options)
    return [
        f"{name}: {violation['id']}: {node['html'][:120]} {node['failureSummary']}"
        for violation in found
        for node in violation["nodes"]
    ]
