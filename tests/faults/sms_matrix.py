"""`python -m tests.faults.sms_matrix`: every message log with every fault of a provider, and senders that are killed.

Each cell is a gateway that accepts messages at a steady pace, senders in processes of their own, and a provider with a
fault. It ends when every accepted message was delivered, and shows what that took. `test_sms_matrix.py` runs the last
row of each log, made small.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog

from paceline.testing import eventually
from paceline.testing.servers.kafka import KafkaServer
from paceline.testing.servers.postgres import PostgresServer
from paceline_sms.settings import SmsSettings
from paceline_sms.stores.tables import notification_message
from tests.faults.sms_provider import HttpProvider, http_provider
from tests.faults.test_notifications_sender import SENDER
from tests.integration.notification_gateway import Gateway, gateway, new_user

SENDERS = {"sqlite": 2, "postgres": 3, "kafka": 3}
"""How many processes send, by message log."""
FAULTS = ("slow", "hanging", "away", "errors", "killed", "all")
QUOTA = 5
"""The quota of the users that send too much."""
GREEDY = 2
DRAIN_SECONDS = 300.0


class Size(NamedTuple):
    """How long things take, and how many there are."""

    users: int = 60
    rate: float = 12.0
    """Messages a second, all users together."""
    seconds: float = 40.0
    """How long messages are accepted."""
    slow: tuple[float, float] = (0.5, 4.0)
    away: float = 60.0
    kill_every: float = 4.0
    lease: float = 10.0
    timeout: float = 10.0

    def scaled(self, scale: float) -> Size:
        """The same with every time shortened but the time-out of a call, at the same rate: so with fewer messages."""
        return self._replace(
            seconds=self.seconds * scale,
            slow=(self.slow[0] * scale, self.slow[1] * scale),
            away=self.away * scale,
            kill_every=self.kill_every * scale,
            lease=max(self.lease * scale, 2.0),
        )


@dataclass
class Result:
    """What a cell came to."""

    accepted: int = 0
    refused: int = 0
    missing: int = 0
    kills: int = 0
    doubles: int = 0
    late: int = 0
    """Duplicates of messages whose answer came after the sender's timeout: a machine that is too busy."""
    unexplained: int = 0
    """Doubles of messages that were not on the wire when their sender was killed, and not late."""
    over_quota: int = 0
    dead_letters: int = 0
    delays: list[float] = field(default_factory=list)
    """From the acceptance of a message to its delivery, of users whose calls do not hang."""

    @property
    def p99(self) -> float:
        return percentile(self.delays, 0.99)

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.unexplained or self.over_quota or self.dead_letters)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)] if values else 0.0


class Senders:
    """Sender processes, of which one is killed now and then, and replaced."""

    def __init__(self, served: Gateway, provider: HttpProvider, size: Size, log: Path) -> None:
        self._served = served
        self._provider = provider
        self._size = size
        self._log = log
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0
        self._noted_at_kill: dict[str, set[str]] = {}
        """By sender that was killed: the messages of its calls whose outcome was stored."""

    def start(self) -> None:
        settings, name = self._served.settings, uuid.uuid4().hex
        environment = {
            "PACELINE_DATABASE_URL": settings.database_url,
            "PACELINE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap or "",
            "PACELINE_SMS_TOPIC": settings.section(SmsSettings).topic,
            "PACELINE_SMS_EVENTS_TOPIC": settings.section(SmsSettings).events_topic,
            "PACELINE_SMS_WEBHOOK_URL": self._provider.url,
            "PACELINE_SMS_WEBHOOK_HEADERS": f'{{"X-Sender": "{name}"}}',
            "PACELINE_SMS_LEASE_SECONDS": f"{self._size.lease:g}",
            "PACELINE_SMS_TIMEOUT_SECONDS": f"{self._size.timeout:g}",
            "PACELINE_SMS_ON_UNKNOWN": "resend",  # so every message arrives; what holds is in test_sms_unknown.py
        }
        with self._log.open("ab") as output:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-c", SENDER], env={**os.environ, **environment}, stdout=output, stderr=output
            )

    async def kill(self, chance: random.Random) -> None:
        """Kills one of them, and starts another."""
        name = chance.choice(sorted(self._running))
        process = self._running.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        calls = dict(self._provider.answered[name])
        self.kills += 1
        await asyncio.to_thread(process.wait)
        self._noted_at_kill[name] = await self._noted(
            [message_id for message_id, at in calls.items() if at is not None]
        )
        self.start()

    def on_the_wire(self) -> Counter[str]:
        """How often each message was on the wire of a sender that was killed, or answered and not yet noted. A busy
        provider reads some of these calls only after the kill."""
        calls: Counter[str] = Counter()
        for name, noted in self._noted_at_kill.items():
            calls.update(self._provider.answered[name].keys() - noted)
        return calls

    async def _noted(self, message_ids: Sequence[str]) -> set[str]:
        """Those of the messages whose outcome is stored: an answer may have come a moment before the kill."""
        message = notification_message.c
        query = sa.select(message.message_id).where(
            message.message_id.in_(message_ids), message.settled_at.is_not(None)
        )
        return set(await self._served.database.read(lambda connection: list(connection.execute(query).scalars())))

    async def kill_again_and_again(self, chance: random.Random) -> None:
        while True:
            await asyncio.sleep(self._size.kill_every)
            await self.kill(chance)

    async def stop(self) -> None:
        for process in list(self._running.values()):
            process.kill()
            await asyncio.to_thread(process.wait)


@asynccontextmanager
async def senders(served: Gateway, provider: HttpProvider, size: Size, count: int, log: Path) -> AsyncIterator[Senders]:
    """So many senders, ended when left."""
    started = Senders(served, provider, size, log)
    try:
        for _ in range(count):
            started.start()
        yield started
    finally:
        await started.stop()


async def run_cell(stores: dict[str, Any], count: int, fault: str, size: Size, log: Path, *, hangs: bool) -> Result:
    """Runs one cell. Without `hangs`, no call hangs that would hang under this fault."""
    chance, result = random.Random(15), Result()
    everything = fault == "all"
    users = [new_user() for _ in range(size.users)]
    greedy, hanging = users[:GREEDY], users[GREEDY : GREEDY + 2]
    async with http_provider() as provider, gateway(**stores) as served:
        for user in users:
            limit = QUOTA if user in greedy else 10_000
            assert (await served.configure(user, limit, 600)).status_code == 200
        async with senders(served, provider, size, count, log) as sending:
            # The first message takes as long as the processes take to start.
            warm_up = await _accepted(served, users[-1])
            await eventually(lambda: warm_up in provider.at, within=60)
            if fault in ("slow", "all"):
                provider.delays = size.slow
            if fault in ("hanging", "all") and hangs:
                provider.hangs = set(hanging)
            if fault in ("errors", "all"):
                provider.errors = 0.2
            beside = []
            if fault == "killed":
                provider.delay = 0.2
            if fault in ("killed", "all"):
                beside.append(asyncio.create_task(sending.kill_again_and_again(chance)))
            if fault in ("away", "all"):
                beside.append(asyncio.create_task(_away(provider, size, chance)))
            accepted = await _send_steadily(served, users, size, result)
            if everything or fault == "away":
                await beside[-1]
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            provider.hangs = set()
            ids = {warm_up, *accepted}
            try:
                await eventually(lambda: ids <= provider.at.keys(), within=DRAIN_SECONDS)
            except TimeoutError:
                result.missing = len(ids - provider.at.keys())
        result.accepted, result.kills, on_the_wire = len(ids), sending.kills, sending.on_the_wire()
        for message_id, times in Counter(provider.accepted).items():
            result.doubles += times - 1
            others = max(times - 1 - on_the_wire[message_id], 0)
            late = min(others, provider.unheard[message_id])
            result.late += late
            result.unexplained += others - late
        result.unexplained += len(provider.at.keys() - ids)
        for user in greedy:
            delivered = {call["messageId"] for call in provider.calls if call["userId"] == user} & provider.at.keys()
            result.over_quota += max(len(delivered) - QUOTA, 0)
        result.delays = [
            provider.at[message_id] - at
            for message_id, (user, at) in accepted.items()
            if user not in hanging and message_id in provider.at
        ]
        letters = (await served.client.get("/admin/sms/dead-letters")).json()["deadLetters"]
        result.dead_letters = len(letters)
    return result


async def _away(provider: HttpProvider, size: Size, chance: random.Random) -> None:
    """Half the time it refuses, half the time it cuts connections."""
    await asyncio.sleep(size.seconds / 8)
    provider.away = True
    await asyncio.sleep(size.away / 2)
    provider.away, provider.cuts = False, True
    await asyncio.sleep(size.away / 2)
    provider.cuts = False


async def _accepted(served: Gateway, user: int) -> str:
    answer = await served.send(user, f"to {user}")
    assert answer.status_code == 200, answer.text
    message_id: str = answer.json()["messageId"]
    return message_id


async def _send_steadily(
    served: Gateway, users: Sequence[int], size: Size, result: Result
) -> dict[str, tuple[int, float]]:
    """The sender of each accepted message, and when, by its id."""
    loop = asyncio.get_running_loop()
    accepted: dict[str, tuple[int, float]] = {}

    async def send(user: int) -> None:
        answer = await served.send(user, f"to {user}")
        if answer.status_code == 200:
            accepted[answer.json()["messageId"]] = user, loop.time()
        else:
            # 503 on a machine that is too busy; such a message is never sent either.
            assert answer.status_code in (429, 503), answer.text
            result.refused += 1

    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(round(size.rate * size.seconds)):
            await asyncio.sleep(max(began + number / size.rate - loop.time(), 0))
            group.create_task(send(users[number % len(users)]))
            if number % 10 == 0:
                group.create_task(send(users[number // 10 % GREEDY]))
    return accepted


COLUMNS = ("accepted", "refused", "missing", "kills", "doubles", "late", "others", "over", "dead", "p50 s", "p99 s")


def line(log: str, fault: str, cells: Sequence[str], note: str) -> str:
    """A row of the table."""
    return " ".join([f"{log:9} {fault:8}", *(f"{cell:>8}" for cell in cells), note])


def cells(result: Result, twin: Result | None) -> list[str]:
    """The text of a cell in its row."""
    counts = (result.accepted, result.refused, result.missing, result.kills, result.doubles, result.late)
    faults = (result.unexplained, result.over_quota, result.dead_letters)
    spans = (percentile(result.delays, 0.5), result.p99, *(() if twin is None else (result.p99 / twin.p99,)))
    return [*map(str, counts + faults), *(f"{span:.2f}" for span in spans)] + [""] * (twin is None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sms_matrix", description=__doc__)
    parser.add_argument("--log", choices=list(SENDERS), action="append", help="of these; all, if not given")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="of these; all, if not given")
    parser.add_argument("--scale", type=float, default=1.0, help="shortens every time: 0.2 takes a fifth")
    parser.add_argument("--keep", type=Path, help="a folder for the senders' logs")
    options = parser.parse_args()
    size, wrong = Size().scaled(options.scale), 0
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(line("log", "fault", [*COLUMNS, "ratio"], ""), flush=True)
    with ExitStack() as opened:
        folder = options.keep or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for log in options.log or SENDERS:
            with ExitStack() as servers:
                stores = _servers(servers, log, folder)
                for fault in options.fault or FAULTS:
                    result, twin = _cell(stores, log, fault, size, folder)
                    is_right = result.is_right and (twin is None or (twin.is_right and result.p99 <= 2 * twin.p99))
                    wrong += not is_right
                    print(line(log, fault, cells(result, twin), "" if is_right else "WRONG"), flush=True)
    print("doubles: of calls that were on the wire at a kill, but for late (answered after the time-out) and others.")
    print("over: messages beyond a quota. dead: dead letters.")
    print("p50, p99: from acceptance to delivery, of users whose calls do not hang. ratio: p99 to a run without them.")
    return wrong


def _cell(stores: Any, log: str, fault: str, size: Size, folder: Path) -> tuple[Result, Result | None]:
    def run(hangs: bool) -> Result:
        where = folder / f"{log}-{fault}{'' if hangs else '-twin'}.log"
        return asyncio.run(run_cell(stores(), SENDERS[log], fault, size, where, hangs=hangs))

    return run(True), run(False) if fault in ("hanging", "all") else None


def _servers(opened: ExitStack, log: str, folder: Path) -> Any:
    """Starts what a message log needs; returns what makes settings with a new database."""
    if log == "sqlite":
        return lambda: {"database_url": f"sqlite:///{folder / f'{uuid.uuid4().hex}.db'}"}
    postgres = opened.enter_context(PostgresServer())
    further = {}
    if log == "kafka":
        further["kafka_bootstrap"] = opened.enter_context(KafkaServer()).bootstrap
    return lambda: {"database_url": postgres.databases.create(f"sms_{uuid.uuid4().hex[:8]}"), **further}


if __name__ == "__main__":
    sys.exit(min(main(), 1))
