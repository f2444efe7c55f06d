"""How commands declare what they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.core import ParameterSource

from paceline.errors import ConfigurationError, InvalidInput

PREFIX = "PACELINE_"
"""Begins the variable of every setting. An option that overrides a setting has the setting's name."""
as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")
"""The `--json` option every command that only reads has."""


Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def completing(values: Iterable[str]) -> Completion:
    """Completes one of these values on TAB, as `shell_complete` of an option whose value the domain checks: its error
    names the field, and `click.Choice` would raise another one first."""
    known = [str(value) for value in values]
    return lambda _context, _parameter, typed: [value for value in known if value.startswith(typed)]


class Argument(click.Argument):
    """An argument with a help text. click has such texts itself only since 8.5."""

    def __init__(self, declared: list[str], about: str | None = None, **options: Any) -> None:
        super().__init__(declared, **options)
        self.about = about


class Command(click.Command):
    """A command whose help lists its arguments before its options. Its errors name a field as the user types it: a
    parameter has the name of the field that it fills."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            raise self._as_typed(ctx, error) from None

    def _as_typed(self, ctx: click.Context, error: InvalidInput) -> InvalidInput:
        # An option that is repeated has no number on the command line.
        field, dot, rest = re.sub(r"^([^.\[]*)\[\d+\]", r"\1", error.field).partition(".")
        is_setting = field.startswith(PREFIX)
        # Documents say perSecond, Python says per_second.
        names = {str(param.name).replace("_", ""): param for param in self.params}
        param = names.get(field.removeprefix(PREFIX).replace("_", "").lower())
        if param is None:
            return error
        if is_setting and ctx.get_parameter_source(str(param.name)) is not ParameterSource.COMMANDLINE:
            return error
        typed = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.strip("[].")
        kind = ConfigurationError if isinstance(error, ConfigurationError) else InvalidInput
        return kind(f"{typed}{dot}{rest}", error.problem)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [param for param in self.params if isinstance(param, Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(param.make_metavar(ctx), _about(param)) for param in arguments])
        super().format_options(ctx, formatter)


class Group(click.Group):
    """A group of such commands, listed in the order in which they are written."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own cuts the sentences that do not fit into one line.
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(each)) for name, each in self.commands.items()])


def _first_sentence(command: click.Command) -> str:
    text = " ".join((command.help or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def _about(param: Argument) -> str:
    default = f"default: {param.default}" if isinstance(param.default, str) else None
    note = "required" if param.required else default
    return "  ".join(filter(None, [param.about, note and f"[{note}]"]))
