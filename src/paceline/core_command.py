"""The command `paceline` where only the core is installed: limits by `paceline.toml` and `PACELINE_…`.

`paceline[queue]` brings the whole command line (`paceline.server.cli`), which has the same `limits`, and more of it.
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from paceline import __version__
from paceline.errors import InvalidInput, MissingExtra, PacelineError
from paceline.extras import installed

NEEDS = {
    "serve": "server",
    "worker": "queue",
    "forecast": "queue",
    "doctor": "queue",
    "prune": "queue",
    "migrate": "queue",
    "config": "queue",
    "slots": "queue",
    "plans": "queue",
    "tokens": "queue",
    "sessions": "queue",
    "audit": "queue",
    "queue": "queue",
    "periodic": "queue",
    "workers": "queue",
    "downstreams": "queue",
    "top": "queue",
    "completion": "queue",
}
"""The other commands, and the extra that each needs."""


def missing_commands() -> str:
    """The commands whose extra is not installed, and how to install it, for `--help`; empty if there are none."""
    missing: dict[str, list[str]] = {}
    for name, extra in NEEDS.items():
        if not installed(extra):
            missing.setdefault(extra, []).append(name)
    return "; ".join(f"{', '.join(names)} (pip install 'paceline[{extra}]')" for extra, names in missing.items())


def main(arguments: list[str]) -> int:
    """Runs a command: exit status 0 if allowed, 1 if denied or failed, 2 if the arguments are wrong; errors in one
    line."""
    name = arguments[0] if arguments else ""
    try:
        if name in NEEDS:
            raise MissingExtra(f"paceline {name}", NEEDS[name])
        return _limits(_parser().parse_args(arguments or ["--help"]))
    except InvalidInput as error:
        message, status = str(error), 2
    except PacelineError as error:
        message, status = str(error), 1
    sys.stderr.write(f"{message if message.startswith('paceline ') else f'paceline: {message}'}\n")
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"paceline: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("paceline", epilog=f"Not installed: {missing_commands()}")
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    limits = commands.add_parser("limits", help="query the limiter; exit status 0 if allowed, 1 if denied")
    parts = limits.add_subparsers(required=True, dest="call", metavar="COMMAND")
    for call, about in (
        ("acquire", "charge a cost to a key, if every plan has room for it"),
        ("peek", "see whether there would be room; charges nothing"),
        ("refund", "give a cost back"),
        ("reset", "clear a key's usage"),
    ):
        part = parts.add_parser(call, help=about)
        part.add_argument("key")
        part.add_argument("--plan", dest="plans", action="append", required=True, help="again for more plans")
        if call != "reset":
            part.add_argument("--cost", type=int, default=1)
    return parser


def _limits(options: argparse.Namespace) -> int:
    from paceline.limits._blocking import Limiter
    from paceline.limits.settings_file import limiter_options

    settings = limiter_options(None)
    if settings["store"] == "memory://":
        sys.stderr.write("paceline: nothing is kept without PACELINE_REDIS_URL\n")
    with Limiter(**settings) as limiter:
        if options.call == "refund":
            limiter.refund(options.key, options.plans, options.cost)
            return _say(f"gave {options.cost} back")
        if options.call == "reset":
            limiter.reset(options.key, options.plans)
            return _say("cleared")
        decision = getattr(limiter, options.call)(options.key, options.plans, options.cost)
    left = f"plan {decision.plan} has {decision.remaining} of {decision.limit} left"
    if decision.allowed:
        return _say(f"allowed: {left}")
    return _say(f"denied: {left}; retry after {decision.retry_after:g} s", 1)


def _say(line: str, status: int = 0) -> int:
    sys.stdout.write(f"{line}\n")
    return status
