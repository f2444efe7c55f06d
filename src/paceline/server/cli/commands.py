"""All commands and their modules: `paceline --help` imports none of them, and each command only its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

ABOUT = {
    "serve": "Run the service until it is stopped (Ctrl+C, SIGTERM); requests in flight are finished first.",
    "worker": "Work until stopped (Ctrl+C, SIGTERM); what is in flight is finished or given back first.",
    "demo": "Send a feed of payments that all want the same second through a downstream that takes so many",
    "forecast": "Show when a number of events would run, without booking anything.",
    "doctor": "Check every configured dependency and say what to do; exit status 1 if anything is wrong.",
    "prune": "Forget slots, windows, finished items, payments, messages and audit entries that far in the past.",
    "migrate": "Bring the database to this version's schema, or one step back. The service does so itself on SQLite.",
    "config": "Show and change configs: how much may happen in each window.",
    "slots": "Book, list, explain and cancel slots.",
    "payments": "Submit feeds of payments; show and cancel payments.",
    "sms": "Send messages and follow them; look after quotas, opt-outs and dead letters.",
    "plans": "Show and change plans: what limits hold.",
    "limits": "Query the limiter. Exit status 0 if allowed, 1 if denied.",
    "tokens": "Create, list, rotate and revoke the tokens that callers present.",
    "sessions": "List and end the logins to the console.",
    "audit": "Check the record of who changed what.",
    "queue": "Look at the dispatch queue and operate it.",
    "periodic": "List, pause and trigger periodic tasks.",
    "workers": "Show the workers of each queue, and the queues without workers.",
    "completion": "Print the script that completes commands and options on TAB in your shell.",
}
"""The first sentence of each command's help (a test compares)."""
HOMES = {
    "demo": "paceline_payments.service.demo",
    "payments": "paceline_payments.service.cli.payments",
    "sms": "paceline_sms.service.cli.sms",
}
"""The modules of the applications' commands."""


class Commands(click.Group):
    """Loads a command when it is called, from the module of its name: a command of that name too, or an `app`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Their names are known at once: a mistyped name gets the nearest one in its error message.
        self.commands: dict[str, Any] = dict.fromkeys(ABOUT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            return None
        if self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        command: click.Command = self.commands[cmd_name]
        return command

    def load_all(self) -> Commands:
        """This group, with every command loaded into `commands`."""
        for name in ABOUT:
            self.get_command(None, name)
        return self

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, ABOUT))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _short(about, width)) for name, about in ABOUT.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from paceline.core_command import missing_commands

        if missing := missing_commands():
            formatter.write_paragraph()
            formatter.write_text(f"Not installed: {missing}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click's own would import every command for its help text, at every press of TAB.
        names = [name for name in ABOUT if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=_short(ABOUT[name], 60)) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def _loaded(name: str) -> click.Command:
    module = import_module(HOMES.get(name, f"paceline.server.cli.{name}"))
    command: click.Command = getattr(module, "app", None) or getattr(module, name)
    return command


def _short(about: str, width: int) -> str:
    """The first sentence, truncated at a word to fit."""
    sentence = about.partition(". ")[0].rstrip(".")
    if len(sentence) <= width:
        return sentence
    return sentence[: width - 2].rpartition(" ")[0] + "..."
