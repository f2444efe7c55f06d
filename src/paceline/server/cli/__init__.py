"""The command line: one module per command group, loaded on demand."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from typing import NoReturn

import click

from paceline import __version__
from paceline.errors import InvalidInput, MissingExtra, PacelineError
from paceline.server.cli.commands import Commands, ReaderLeft, all_commands
from paceline.server.cli.streams import discard_unwritten, replace_closed_streams, write_in_any_encoding
from paceline.sql.migration_policy import Migrations, permitting


@click.group(
    "paceline",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="paceline %(version)s", help="Show the version.")
def app() -> None:
    """Rate limits, planned time slots and a durable job queue for Python."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line: exit status 0, 1 if it failed, 2 if the arguments are wrong; errors in one line, with
    `--json` a JSON object."""
    # A command has no log, and OpenTelemetry warns about headers it can't parse. Handlers of `serve` and `worker` still
    # get it.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    replace_closed_streams()
    write_in_any_encoding()
    words = sys.argv[1:] if arguments is None else arguments
    fail = partial(_end, as_json="--json" in words)
    try:
        with permitting(Migrations.EMBEDDED):
            sys.exit(app.main(arguments, prog_name="paceline", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        # Some of click's messages list choices on lines of their own.
        fail(" ".join(error.format_message().split()), error.exit_code)
    except MissingExtra as error:
        called = next((word for word in words if word in all_commands()), "")
        fail(f"paceline {called} {error.problem}", 2)
    except InvalidInput as error:
        fail(str(error), 2)
    except PacelineError as error:
        fail(_redacted(str(error)), 1)
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'paceline[all]', or the extra that brings it", 2)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted", 130)
    except (ReaderLeft, BrokenPipeError):
        discard_unwritten()
        sys.exit(0)
    except OSError as error:
        if error.errno is None:
            raise  # not the operating system's: a fault of paceline
        named = "" if error.filename is None else f"{error.filename}: "
        fail(f"{named}{error.strerror}", 1)


def _end(message: str, status: int, *, as_json: bool) -> NoReturn:
    """Says it on standard error: as a line, or for a program that asked for JSON as an object."""
    discard_unwritten()
    # A message such as "paceline serve needs: …" names the program already.
    line = message if message.startswith("paceline ") else f"paceline: {message}"
    click.echo(json.dumps({"error": message}, ensure_ascii=False) if as_json else line, err=True)
    sys.exit(status)


def _redacted(message: str) -> str:
    """The message without the secrets of the settings: a driver's text may contain them."""
    from paceline.server.settings import Settings

    try:
        return Settings.load().redacted(message)
    except PacelineError:
        return message  # the settings were not read, so none of them can be in it
