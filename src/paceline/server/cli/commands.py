"""All commands and their modules: `paceline --help` imports none of them, and each command only its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from paceline.server.apps import app_commands, part

ABOUT = {
    "serve": "Run the service until it is stopped (Ctrl+C, SIGTERM); requests in flight are finished first.",
    "worker": "Work until stopped (Ctrl+C, SIGTERM); what is in flight is finished or given back first.",
    "forecast": "Show when a number of events would run, without booking anything.",
    "doctor": "Check every configured dependency and say what to do; exit status 1 if anything is wrong.",
    "prune": "Forget slots, windows, finished items, audit entries and what applications keep, that far in the past.",
    "migrate": "Bring the database to this version's schema, or one step back. The service does so itself on SQLite.",
    "config": "Show and change configs: how much may happen in each window.",
    "slots": "Book, list, explain and cancel slots.",
    "plans": "Show and change plans: what limits hold.",
    "limits": "Query the limiter. Exit status 0 if allowed, 1 if denied.",
    "tokens": "Create, list, rotate and revoke the tokens that callers present.",
    "sessions": "List and end the logins to the console.",
    "audit": "Check the record of who changed what.",
    "queue": "Look at the dispatch queue and operate it.",
    "periodic": "List, pause and trigger periodic tasks.",
    "workers": "Show the workers of each queue, and the queues without workers.",
    "top": "Show what arrives, waits, runs and leaves, per queue, live.",
    "downstreams": "Show the systems that programs call, and pause them.",
    "completion": "Print the script that completes commands and options on TAB in your shell.",
}
"""The first sentence of the help of each command, without those of the applications (a test compares)."""


def all_commands() -> dict[str, str]:
    """The first sentence of each command's help, with those of the applications."""
    return ABOUT | {name: command.about for name, command in app_commands().items()}


class ReaderLeft(Exception):
    """The reader of the output has closed it (`| head`): it has what it wanted."""


class Commands(click.Group):
    """Loads a command when it is called, from the module of its name: a command of that name too, or an `app`."""

    commands: dict[str, Any]

    def main(self, *arguments: Any, **options: Any) -> Any:
        self.learn_names()
        return super().main(*arguments, **options)

    def learn_names(self) -> None:
        """Names all commands: a mistyped name gets the nearest one in its error message."""
        for name in all_commands():
            self.commands.setdefault(name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            return None
        if self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        command: click.Command = self.commands[cmd_name]
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # click's own handler would make it a failure.
            raise ReaderLeft from None

    def load_all(self) -> Commands:
        """This group, with every command loaded into `commands`."""
        self.learn_names()
        for name in self.commands:
            self.get_command(None, name)
        return self

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(about)) for name, about in all_commands().items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from paceline.core_command import missing_commands

        if missing := missing_commands():
            formatter.write_paragraph()
            formatter.write_text(f"Not installed: {missing}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click's own would import every command for its help text, at every press of TAB.
        found = {name: about for name, about in all_commands().items() if name.startswith(incomplete)}
        commands = [CompletionItem(name, help=_short(about, 60)) for name, about in found.items()]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def _loaded(name: str) -> click.Command:
    command: click.Command
    if name in ABOUT:
        module = import_module(f"paceline.server.cli.{name}")
        command = getattr(module, "app", None) or getattr(module, name)
    else:
        command = part(app_commands()[name].place)
    return command


def _summary(about: str) -> str:
    """The first sentence."""
    return about.partition(". ")[0].rstrip(".")


def _short(about: str, width: int) -> str:
    """The first sentence, truncated at a word to fit."""
    sentence = _summary(about)
    if len(sentence) <= width:
        return sentence
    return sentence[: width - 2].rpartition(" ")[0] + "..."
