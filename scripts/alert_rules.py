"""Writes the alert rules of the applications into `deploy/prometheus/rules.yml`, beside paceline's own.

An application has its rules in a file that its `App` names (`alerts`). A test compares: run this after a change.
"""

from __future__ import annotations

import re
from pathlib import Path

from paceline.server.apps import app_alerts

RULES = Path(__file__).parents[1] / "deploy/prometheus/rules.yml"
_GROUP = re.compile(r"(?ms)(?:^  #[^\n]*\n)*^  - name: ([^\n]*).*?(?=^(?:  #[^\n]*\n)*  - name: |\Z)")
"""A group, with the comment above it."""


def assembled(rules: str) -> str:
    """The rules with each application's groups as the application has them, each where it was or at the end."""
    groups = _groups(rules)
    head = rules[: rules.index(next(iter(groups.values())))]
    for file in app_alerts():
        groups |= _groups(file.read_text("utf-8"))
    return head + "\n".join(group.rstrip() + "\n" for group in groups.values())


def _groups(rules: str) -> dict[str, str]:
    return {found[1]: found[0] for found in _GROUP.finditer(rules)}


if __name__ == "__main__":
    RULES.write_text(assembled(RULES.read_text("utf-8")), "utf-8")
