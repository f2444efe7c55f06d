"""Every command, and where it is: `headgate --help` loads none of them, and each command only itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

ABOUT = {
    "serve": "Run the service until it is told to stop (Ctrl+C, SIGTERM); requests in flight are finished first.",
    "worker": "Work until told to stop (Ctrl+C, SIGTERM); what is in flight is finished or given back first.",
    "demo": "Send a feed of payments that all want the same second through a downstream that takes so many",
    "forecast": "Tell when a number of events would run, without booking anything.",
    "doctor": "Check every configured dependency and say what to do; exit status 1 if anything is wrong.",
    "prune": "Forget slots, windows, finished items, payments, messages and audit entries that far in the past.",
    "migrate": "Bring the database to this version's schema. The service does so itself when it starts.",
    "config": "Show and change configs: how much may happen in each window.",
    "slots": "Book, show and cancel slots.",
    "payments": "Submit feeds of payments; show and cancel payments.",
    "plans": "Show and change plans: what limits hold.",
    "limits": "Ask the limiter. Exit status 0 if allowed, 1 if denied.",
    "tokens": "Create, list and revoke the tokens that callers present.",
    "queue": "Look at the dispatch queue and operate it.",
}
"""What each does, as it says itself (a test compares)."""


class Commands(TyperGroup):
    """Loads a command when it is called, from the module of its name: a function of that name too, or an `app`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Their names are known at once: whoever mistypes one is told which was meant.
        self.commands: dict[str, Any] = dict.fromkeys(ABOUT)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            return None
        if self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands[cmd_name]

    def load_all(self) -> Commands:
        """This, with every command in `commands`: for those who read them all."""
        for name in ABOUT:
            self.get_command(None, name)
        return self

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, ABOUT))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _short(about, width)) for name, about in ABOUT.items()])


def _loaded(name: str) -> Any:
    module = import_module(f"headgate.entrypoints.cli.{name}")
    around = typer.Typer(add_completion=False, rich_markup_mode=None)
    around.callback()(_nothing)
    group = getattr(module, "app", None)
    if group is not None:
        around.add_typer(group, name=name)
    else:
        around.command(name)(getattr(module, name))
    made: Any = typer.main.get_command(around)
    return made.commands[name]


def _nothing() -> None:
    """A Typer with one command and no callback would be that command, without its name."""


def _short(about: str, width: int) -> str:
    """The first sentence, as long as there is room, by whole words."""
    sentence = about.partition(". ")[0].rstrip(".")
    if len(sentence) <= width:
        return sentence
    return sentence[: width - 2].rpartition(" ")[0] + "..."
