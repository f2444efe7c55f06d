"""The audit as a hash chain: changed, removed or inserted entries are detected. Pure.

A change has two links: its begin and its end. The hash of a link covers its contents and the hash of the link before.
With a key (`PACELINE_AUDIT_KEY`), which is not in the database, a writer to the database can't forge a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paceline.server.access.ports import AuditEntry
from paceline.sql.hash_chain import GENESIS, link_hash

MAX_PROBLEMS = 100


class AuditRow(NamedTuple):
    """An entry as it is stored, with its links."""

    number: int
    entry: AuditEntry
    begin_link: int | None
    begin_hash: str | None
    end_link: int | None
    end_hash: str | None


class Verification(NamedTuple):
    """The result of verifying the audit."""

    entries: int
    links: int
    head: str
    """The hash of the last link. Keep it elsewhere: it covers all links before it."""
    problems: list[str]


class _Link(NamedTuple):
    place: int
    hash: str
    number: int
    contents: Sequence[object]


def begin_contents(number: int, entry: AuditEntry) -> Sequence[object]:
    """What the hash of a begin covers."""
    moment = entry.at.isoformat()
    return ["begin", number, moment, entry.caller, entry.method, entry.path, entry.request_id, entry.address]


def end_contents(number: int, status: int | None, detail: str | None) -> Sequence[object]:
    """What the hash of an end covers."""
    return ["end", number, status, detail]


def verify(
    rows: Iterable[AuditRow], head: tuple[int, str] | None, key: bytes = b"", kept: str | None = None
) -> Verification:
    """Compares every row with the chain, and the chain with its last link, and with a hash that was kept elsewhere:
    a writer to the database could truncate the chain, and rewrite the last link."""
    problems: list[str] = []
    links: list[_Link] = []
    count = 0
    for row in rows:
        count += 1
        if row.begin_link is None or row.begin_hash is None:
            problems.append(f"entry {row.number} is not in the chain: it was inserted by hand")
            continue
        links.append(_Link(row.begin_link, row.begin_hash, row.number, begin_contents(row.number, row.entry)))
        if row.end_link is not None and row.end_hash is not None:
            contents = end_contents(row.number, row.entry.status, row.entry.detail)
            links.append(_Link(row.end_link, row.end_hash, row.number, contents))
        elif row.entry.status is not None or row.entry.detail is not None:
            problems.append(f"entry {row.number} was changed: it has a status, and no end in the chain")
    links.sort(key=lambda link: link.place)
    before, place, keyed = GENESIS, 0, False
    for link in links:
        if link.place == place + 2:
            problems.append(f"link {place + 1} is missing, before entry {link.number}")
        elif link.place != place + 1:
            problems.append(f"links {place + 1} to {link.place - 1} are missing, before entry {link.number}")
        else:
            expected = link_hash(before, link.place, link.contents, key)
            plain = bool(key) and not keyed and link.hash == link_hash(before, link.place, link.contents)
            keyed = keyed or (bool(key) and link.hash == expected)
            if link.hash != expected and not plain:
                problems.append(f"entry {link.number} was changed: link {link.place} has another hash")
        before, place = link.hash, link.place
    last = head or (0, GENESIS)
    if (place, before) != last:
        problems.append(f"the chain ends with link {place}, and should end with link {last[0]}: its end was removed")
    if kept is not None and kept not in {link.hash for link in links}:
        problems.append("no link has the hash that was kept: the chain's end was cut off, or the chain was made anew")
    if key and links and not keyed:
        problems.append("no link was made with this key: PACELINE_AUDIT_KEY is another one, or the chain was made anew")
    return Verification(count, place, before, problems[:MAX_PROBLEMS])
