"""The command line's reference: what each command says when asked for help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from click.testing import CliRunner

from paceline.server.cli import app


def page() -> str:
    """Every command with its arguments and options."""
    lines: list[str] = []
    for names in _commands(app.load_all()):
        result = CliRunner().invoke(app, [*names, "--help"], prog_name="paceline", terminal_width=100)
        if result.exit_code != 0:
            raise RuntimeError(f"paceline {' '.join(names)} --help failed: {result.output}")
        lines += [f"### `paceline {' '.join(names)}`", "", "```text", result.output.rstrip(), "```", ""]
    return "\n".join(lines)


def _commands(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    children: dict[str, Any] = getattr(command, "commands", {})
    if not children or getattr(command, "invoke_without_command", False):
        yield names
    for name, child in children.items():
        yield from _commands(child, *names, name)
