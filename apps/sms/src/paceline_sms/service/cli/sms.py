"""`paceline sms`: send a message, follow it, look after quotas, opt-outs and dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import click

from paceline.errors import ConfigurationError, InvalidInput, NotFound
from paceline.extras import require
from paceline.server.cli.parameters import Argument, Command, Group, as_json, completing
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, print_table, run
from paceline.server.settings import Settings
from paceline_sms.model import Priority
from paceline_sms.quota import ALGORITHMS, Unit
from paceline_sms.recipients import checked_phone
from paceline_sms.service.plugin import message_extras
from paceline_sms.service.shapes.notifications import (
    SENT,
    DeadLetter,
    DeadLetters,
    Dropped,
    MessageStatus,
    NotificationConfig,
    NotificationSent,
    OptOut,
    Redriven,
)
from paceline_sms.service.wiring.notifications import Notifications, open_notifications
from paceline_sms.settings import SmsSettings

T = TypeVar("T")

NAMES = {
    "user_id": "USER",
    "message": "TEXT",
    "to": "--to",
    "expires_in": "--expires-in",
    "Idempotency-Key": "--key",
    "phone": "PHONE",
    "zone": "--zone",
    "rate_limit": "--limit",
    "time_window": "--minutes",
    "ids": "ID",
}
PAGE = 1000
PRIORITIES = click.Choice([priority.value for priority in Priority])

user_argument = click.argument("user", cls=Argument, type=int, about="The user's number.")
ids_argument = click.argument("ids", cls=Argument, nargs=-1, metavar="[ID]...", about="As `list` shows them.")
all_option = click.option("--all", "everything", is_flag=True, help="Every dead letter.")


@click.group("sms", cls=Group, no_args_is_help=True)
def app() -> None:
    """Send messages and follow them; look after quotas, opt-outs and dead letters."""


@app.command("send")
@user_argument
@click.argument("text", cls=Argument)
@click.option("--to", help="A number in E.164, instead of the user's own.")
@click.option(
    "--priority",
    type=click.Choice([priority.value for priority in Priority]),
    default="normal",
    help="What goes first.",
)
@click.option("--expires-in", help="How long it may wait, as PT5M.")
@click.option("--key", help="Of a message that must be sent once, however often this command is called.")
@as_json
def send(
    user: int, text: str, to: str | None, priority: str, expires_in: str | None, key: str | None, as_json: bool
) -> None:
    """Accept a message for a user, if the quota has room; exit status 1 if it has none.

    The service or a worker sends it.
    """
    if to is not None:
        checked_phone(to, "to")

    async def work(notifications: Notifications) -> NotificationSent | None:
        verdict = await notifications.intake.send(user, text, key=key, to=to, priority=priority, expires_in=expires_in)
        if not verdict.allowed:
            seconds = -(-verdict.reset_after_ms // 1000)
            print_line(
                f"denied: {verdict.used} of {verdict.rate_limit} {verdict.unit}s are sent; retry after {seconds} s"
            )
            return None
        return NotificationSent(status=SENT, message_id=verdict.message_id, segments=verdict.segments)

    sent = _with(work)
    if sent is None:
        raise click.exceptions.Exit(1)
    if as_json:
        print_json(sent.dump())
    else:
        print_line(f"accepted: {sent.message_id}, {sent.segments} segments")


@app.command("status")
@click.argument("message_id", cls=Argument, metavar="ID")
@as_json
def status(message_id: str, as_json: bool) -> None:
    """Show where a message is."""

    async def work(notifications: Notifications) -> MessageStatus:
        known = await notifications.messages.status(message_id)
        if known is None:
            raise NotFound("message", message_id)
        return MessageStatus.of(known)

    _show(_with(work, only_reads=True), as_json)


@app.command("quota")
@user_argument
@click.option("--limit", type=int, help="Set it: so many messages or segments.")
@click.option("--minutes", type=int, help="Set it: in so many minutes.")
@click.option(
    "--algorithm",
    shell_complete=completing(ALGORITHMS),
    help="fixed_window, sliding_window, sliding_log or token_bucket.",
)
@click.option("--unit", shell_complete=completing(Unit), help="message or segment.")
@click.option("--phone", help="The user's number in E.164.")
@click.option("--zone", help="The user's time zone, for quiet hours.")
@click.option("--delete", "deletes", is_flag=True, help="Remove it: the user may send nothing.")
@as_json
def quota(
    user: int,
    limit: int | None,
    minutes: int | None,
    algorithm: str | None,
    unit: str | None,
    phone: str | None,
    zone: str | None,
    deletes: bool,
    as_json: bool,
) -> None:
    """Show a user's quota; with --limit and --minutes, set it; with --delete, remove it."""
    if (limit is None) != (minutes is None) or (deletes and limit is not None):
        raise InvalidInput("--limit", "give --limit and --minutes together, or --delete alone")
    if limit is None and any(value is not None for value in (algorithm, unit, phone, zone)):
        raise InvalidInput("--limit", "and --minutes are needed to set anything")
    if phone is not None:
        checked_phone(phone)

    async def work(notifications: Notifications) -> NotificationConfig | None:
        intake = notifications.intake
        if deletes:
            await intake.delete(user)
            return None
        if limit is None:
            return NotificationConfig.of_quota(await intake.quota(user))
        options = {"algorithm": algorithm, "unit": unit, "phone": phone, "zone": zone}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return NotificationConfig.of_quota(await intake.configure(user, limit, minutes, **given))

    shown = _with(work, only_reads=limit is None and not deletes)
    if shown is None:
        print_json({"deleted": user}) if as_json else print_line("deleted")
    else:
        _show(shown, as_json)


@app.command("optout")
@click.argument("phone", cls=Argument, about="In E.164.")
@click.option("--reason", default="STOP", help="Why.")
@click.option("--undo", is_flag=True, help="Send to the number again.")
@as_json
def optout(phone: str, reason: str, undo: bool, as_json: bool) -> None:
    """Send nothing to a number any more."""
    number = checked_phone(phone)

    async def work(notifications: Notifications) -> OptOut | None:
        if undo:
            if not await notifications.messages.opt_in(number):
                raise NotFound("opt-out", number)
            return None
        await notifications.messages.opt_out(number, reason)
        return OptOut(phone=number, reason=reason)

    done = _with(work)
    if done is None:
        print_line("messages go to this number again")
    else:
        _show(done, as_json)


@app.group("dead-letters", cls=Group, no_args_is_help=True)
def dead_letters() -> None:
    """Messages that were refused, expired or could not be read."""


@dead_letters.command("list", cls=Command)
@click.option("--limit", type=click.IntRange(1, PAGE), default=100, help="The most to show.")
@as_json
def list_letters(limit: int, as_json: bool) -> None:
    """Show dead letters, the oldest first; never their texts."""

    async def work(notifications: Notifications) -> list[DeadLetter]:
        return [DeadLetter.of_letter(letter) for letter in await notifications.messages.dead_letters(limit)]

    letters = _with(work, only_reads=True)
    if as_json:
        print_json(DeadLetters(dead_letters=letters, next=None).dump())
    else:
        rows = [[letter.id, letter.user_id, letter.reason, str(letter.attempts), letter.dead_at] for letter in letters]
        print_table(["id", "user", "reason", "attempts", "since"], rows)


@dead_letters.command("redrive", cls=Command)
@ids_argument
@all_option
@as_json
def redrive(ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Send dead letters again, as new; those too long to be kept whole stay."""
    _check_selection(ids, everything)

    async def work(notifications: Notifications) -> Redriven:
        await _check_letters(notifications, ids)
        done, kept = await notifications.messages.redrive(None if everything else list(ids))
        return Redriven(redriven=done, kept=kept)

    _show(_with(work), as_json)


@dead_letters.command("drop", cls=Command)
@ids_argument
@all_option
@as_json
def drop(ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Delete dead letters for good."""
    _check_selection(ids, everything)

    async def work(notifications: Notifications) -> Dropped:
        await _check_letters(notifications, ids)
        return Dropped(dropped=await notifications.messages.drop(None if everything else list(ids)))

    _show(_with(work), as_json)


def _check_selection(ids: tuple[str, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise InvalidInput("ID", "give ids, or --all")


async def _check_letters(notifications: Notifications, ids: tuple[str, ...]) -> None:
    """Rejects ids of no dead letter, before anything is done with the others."""
    for unknown in await notifications.messages.unknown_dead_letters(ids):
        raise NotFound("dead letter", unknown)


def _with(work: Callable[[Notifications], Awaitable[T]], *, only_reads: bool = False) -> T:
    """The result of `work`, on the gateway of the settings; messages are left to the senders."""

    async def opened(settings: Settings) -> T:
        require("messages", *message_extras(settings))
        sms = settings.section(SmsSettings).model_copy(update={"sender": "worker"})
        async with open_notifications(settings.with_section(sms), relays=False) as notifications:
            return await work(notifications)

    context: AbstractContextManager[Settings] = read_only_settings() if only_reads else nullcontext(Settings.load())
    with context as settings:
        try:
            return run(opened(settings))
        except ConfigurationError:
            raise
        except InvalidInput as error:
            raise InvalidInput(NAMES.get(error.field, error.field), error.problem) from None


def _show(shape: MessageStatus | NotificationConfig | OptOut | Redriven | Dropped, as_json: bool) -> None:
    document = shape.dump()
    if as_json:
        print_json(document)
        return
    for name, value in document.items():
        if value is not None:
            print_line(f"{name}\t{value}")
