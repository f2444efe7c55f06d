"""The database: reachable, up to date, on time, writable."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from paceline.errors import PacelineError, StoreFull, StoreLagging, StoreReadOnly, StoreUnavailable
from paceline.server.cli.doctor.finding import Finding, clock_finding, within
from paceline.server.cli.read_only import sqlite_file
from paceline.server.settings import Settings, masked
from paceline.server.wiring.database import DatabaseInfo, database_info

ADVICE = "check PACELINE_DATABASE_URL, that the server runs, and the user's rights"
WRITE_ADVICE: dict[type[StoreUnavailable], str] = {
    StoreReadOnly: "name the primary, or end what made it read-only (default_transaction_read_only, the file's rights)",
    StoreFull: "make room on the database's disk; what was accepted is safe, and work continues by itself",
    StoreLagging: "look for a synchronous standby that is away, long locks, or a slow disk",
}
MIN_FREE_BYTES = 512 * 1024 * 1024
MIN_TOKEN_LENGTH = 16


async def examine(settings: Settings) -> list[Finding]:
    """The database, and the tokens that are stored there."""
    url = settings.database_url
    if url.startswith("memory:"):
        return [_listening(settings, 0), Finding("database", True, "memory: gone when the process ends")]
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return [_listening(settings, 0), *_absent(file)]
    findings = await within("database", masked(url), ADVICE, _query(settings, url, file))
    known = _listening(settings, 0)
    # If it could not be reached, the database may still have tokens: then this is no finding.
    return findings if findings[0].name == "listening" or not known.ok else [known, *findings]


async def _query(settings: Settings, url: str, file: Path | None) -> list[Finding]:
    sent = datetime.now(UTC)
    info = await database_info(url)
    received = datetime.now(UTC)
    findings = [
        _listening(settings, info.tokens),
        Finding("database", True, f"{masked(url)}, {info.dialect} {info.version}"),
        _schema(info),
        clock_finding("clock", "the database's", info.now, sent, received),
        _writes(info.refuses_writes),
        *_pooler(settings, info),
    ]
    return [*findings, _disk(file)] if file is not None else findings


def _schema(info: DatabaseInfo) -> Finding:
    if info.lagging:
        return Finding("schema", False, f"lacks {', '.join(info.pending)}", "run paceline migrate up")
    revisions = [revision for revision in info.revisions.values() if revision is not None]
    if not revisions:
        return Finding("schema", True, "empty: the first service, worker or queue makes it")
    if info.pending:
        return Finding("schema", True, f"lacks {', '.join(info.pending)}: the next service or worker makes it")
    return Finding("schema", True, f"up to date at {', '.join(revisions)}")


def _pooler(settings: Settings, info: DatabaseInfo) -> list[Finding]:
    if not info.is_pooled:
        return []
    if info.pooler_fails is not None:
        return [Finding("pooler", False, str(info.pooler_fails), "add ?prepare=off to PACELINE_DATABASE_URL")]
    if settings.database_listen_url is None:
        advice = "set PACELINE_DATABASE_LISTEN_URL to the server itself, so that work starts at once"
        return [Finding("pooler", False, "notifications do not pass the pooler", advice)]
    return [Finding("pooler", True, "statements of several clients work behind the pooler")]


def _writes(refused: StoreUnavailable | None) -> Finding:
    if refused is None:
        return Finding("writes", True, "the database takes writes")
    return Finding("writes", False, str(refused), WRITE_ADVICE.get(type(refused), ADVICE))


def _absent(file: Path) -> list[Finding]:
    folder = file.absolute().parent
    if not folder.is_dir():
        advice = f"make the folder {folder}, or set PACELINE_DATABASE_URL"
        return [Finding("database", False, f"{file} can't be made: its folder does not exist", advice)]
    return [Finding("database", True, f"{file} will be made when it is first used"), _disk(file)]


def _disk(file: Path) -> Finding:
    """A writer needs write access to the folder, too: SQLite keeps its WAL beside the file."""
    folder = file.absolute().parent
    for path in (file, folder):
        if path.exists() and not os.access(path, os.W_OK):
            return Finding("disk", False, f"{path} can't be written", "give this user the right to write it")
    free = shutil.disk_usage(folder).free
    advice = "make room: without it nothing can be booked" if free < MIN_FREE_BYTES else None
    return Finding("disk", True, f"{free / 1024**3:.1f} GiB free in {folder}", advice)


def _listening(settings: Settings, tokens: int) -> Finding:
    try:
        settings.refuse_exposure(other_tokens=tokens > 0)
    except PacelineError as error:
        return Finding("listening", False, str(error))
    fixed = [token for token in (settings.api_token, settings.admin_token) if token is not None]
    guarded = "without tokens, this machine only"
    if fixed or tokens:
        guarded = f"with {len(fixed)} tokens of the settings and {tokens} of the database"
    short = any(len(token.get_secret_value()) < MIN_TOKEN_LENGTH for token in fixed)
    advice = f"a token of fewer than {MIN_TOKEN_LENGTH} characters may be guessed; use paceline tokens create"
    return Finding("listening", True, f"{settings.host}:{settings.port}, {guarded}", advice if short else None)
