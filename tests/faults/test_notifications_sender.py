"""The sender is killed in the middle of its work: no message is lost, none that is known to be sent goes out again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline.messaging import LogEntry
from paceline.testing import eventually
from paceline_sms.settings import SmsSettings
from tests.integration.notification_gateway import Gateway, gateway

SENDER = """
import sys
from paceline.server.cli import main
sys.argv = ["paceline", "worker", "sender"]
main()
"""
DIES_BEFORE_COMMIT = """
import os, signal
from paceline.kafka.consumer import KafkaSource
commit = KafkaSource.commit
async def dies(source, done):
    if source._topic == os.environ["PACELINE_SMS_TOPIC"]:
        os.kill(os.getpid(), signal.SIGKILL)
    await commit(source, done)
KafkaSource.commit = dies
"""
MESSAGES = 40


class Provider:
    """An SMS provider: records every call, and does something at one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: set[str] = set()
        self.at_call: tuple[int, Callable[[], None]] | None = None
        self._lock = threading.Lock()

    def called(self, message_id: str) -> int:
        with self._lock:
            self.calls.append(message_id)
            if self.at_call is not None and len(self.calls) == self.at_call[0]:
                self.at_call[1]()
        return 422 if message_id in self.fails else 200


@contextmanager
def provider() -> Iterator[tuple[Provider, str]]:
    found = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["Idempotency-Key"] == body["messageId"]
            self.send_response(found.called(body["messageId"]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found, f"http://127.0.0.1:{server.server_address[1]}/sms"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@asynccontextmanager
async def sender(
    served: Gateway, url: str, directory: Path, code: str = SENDER, on_unknown: str = "resend"
) -> AsyncIterator[subprocess.Popen[bytes]]:
    environment = {
        "PACELINE_SMS_ON_UNKNOWN": on_unknown,
        "PACELINE_DATABASE_URL": served.settings.database_url,
        "PACELINE_KAFKA_BOOTSTRAP": served.settings.kafka_bootstrap or "",
        "PACELINE_SMS_TOPIC": served.settings.section(SmsSettings).topic,
        "PACELINE_SMS_EVENTS_TOPIC": served.settings.section(SmsSettings).events_topic,
        "PACELINE_SMS_WEBHOOK_URL": url,
    }
    async with sender_process(environment, directory, code) as process:
        yield process


@asynccontextmanager
async def sender_process(
    environment: dict[str, str], directory: Path, code: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that runs `code`, killed when left."""
    with (directory / "sender.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


@pytest.fixture
async def served(postgres_url: str, kafka_bootstrap: str) -> AsyncIterator[Gateway]:
    async with gateway(
        database_url=postgres_url, kafka_bootstrap=kafka_bootstrap, sms={"kafka_delivery_seconds": 20}
    ) as opened:
        yield opened


async def send_messages(served: Gateway) -> set[str]:
    """The ids of messages that are on the topic."""
    ids = set()
    for number in range(MESSAGES):
        user = number % 8
        if number < 8:
            await served.configure(user, 1_000, 60)
        answer = await served.send(user, f"message {number}")
        assert answer.status_code == 200
        ids.add(answer.json()["messageId"])
    return ids


async def test_killed_between_queueing_and_commit_nothing_is_lost_and_only_the_wire_comes_again(
    served: Gateway, tmp_path: Path
) -> None:
    accepted = await send_messages(served)
    with provider() as (found, url):
        # It queues the messages, and dies before the offsets are committed to Kafka: their records come again.
        async with sender(served, url, tmp_path, DIES_BEFORE_COMMIT + SENDER) as dying:
            assert await asyncio.to_thread(dying.wait, 60) == -signal.SIGKILL
        async with sender(served, url, tmp_path):
            await eventually(lambda: set(found.calls) == accepted, within=60)
            # One more, which comes after all that might come again.
            last = (await served.send(0, "last")).json()["messageId"]
            await eventually(lambda: last in found.calls)
        # Only what another lane had on the wire at the kill, one message a user, is sent again.
        calls = Counter(found.calls)
        assert set(calls) == accepted | {last}
        assert max(calls.values()) <= 2
        assert calls.total() - len(calls) <= 8


async def test_killed_while_sending_nothing_is_lost_and_what_comes_again_has_the_same_id(
    served: Gateway, tmp_path: Path
) -> None:
    accepted = await send_messages(served)
    with provider() as (found, url):
        async with sender(served, url, tmp_path) as dying:
            found.at_call = (MESSAGES // 2, lambda: os.kill(dying.pid, signal.SIGKILL))
            assert await asyncio.to_thread(dying.wait, 60) == -signal.SIGKILL
            await asyncio.sleep(0)
        under_way = 8  # one per user: what the provider got and the database did not
        async with sender(served, url, tmp_path):
            await eventually(lambda: set(found.calls) == accepted, within=60)
        assert len(found.calls) - len(accepted) <= under_way


async def test_killed_while_sending_what_was_on_the_wire_is_held_and_comes_once(
    served: Gateway, tmp_path: Path
) -> None:
    """Unless the operator has chosen to resend, nobody guesses."""
    accepted = await send_messages(served)

    async def statuses() -> Counter[str]:
        return Counter([(await served.client.get(f"/api/messages/{one}")).json()["status"] for one in accepted])

    with provider() as (found, url):
        async with sender(served, url, tmp_path, on_unknown="hold") as dying:
            found.at_call = (MESSAGES // 2, lambda: os.kill(dying.pid, signal.SIGKILL))
            assert await asyncio.to_thread(dying.wait, 60) == -signal.SIGKILL
        async with sender(served, url, tmp_path, on_unknown="hold"):

            async def are_decided() -> bool:
                return (await statuses()).keys() <= {"sent", "unknown"}

            await eventually(are_decided, within=90)
        held = (await statuses())["unknown"]
        assert 1 <= held <= 8, "one per user"
        assert max(Counter(found.calls).values()) == 1


async def test_after_sigterm_it_leaves_at_once_and_nothing_comes_again(served: Gateway, tmp_path: Path) -> None:
    accepted = await send_messages(served)
    with provider() as (found, url):
        async with sender(served, url, tmp_path) as first:
            await eventually(lambda: len(found.calls) >= MESSAGES // 2, within=60)
            first.terminate()
            assert await asyncio.to_thread(first.wait, 30) == 0
        async with sender(served, url, tmp_path) as second:
            await eventually(lambda: set(found.calls) == accepted, within=60)
            last = (await served.send(0, "last")).json()["messageId"]
            await eventually(lambda: last in found.calls)
            second.terminate()
            assert await asyncio.to_thread(second.wait, 30) == 0
        assert Counter(found.calls) == Counter(accepted | {last})


async def test_what_a_provider_refuses_goes_to_the_dead_letters(served: Gateway, tmp_path: Path) -> None:
    from paceline.kafka.log import KafkaLog
    from paceline.messaging import Record

    accepted = await send_messages(served)
    topic = served.settings.section(SmsSettings).topic
    log = KafkaLog(served.settings.kafka_bootstrap or "", topics=(), delivery_seconds=20)
    assert await log.publish([Record(topic, "0", "not a message")]) == [None]
    with provider() as (found, url):
        found.fails = set(sorted(accepted)[:2])
        async with sender(served, url, tmp_path):
            source = await log.read(f"{topic}-dlt", uuid.uuid4().hex)
            dead: list[LogEntry] = []
            async with asyncio.timeout(60):
                while len(dead) < 3:
                    dead += await source.receive(3 - len(dead), 1.0)
            await source.close()
            await eventually(lambda: set(found.calls) == accepted)
    await log.close()
    letters = [json.loads(letter.record.value) for letter in dead]
    unreadable = [letter for letter in letters if letter["value"] == "not a message"]
    assert [letter["attempts"] for letter in unreadable] == [0]
    refused = [letter for letter in letters if letter not in unreadable]
    assert {json.loads(letter["value"])["messageId"] for letter in refused} == found.fails
    assert {(letter["attempts"], letter["reason"]) for letter in refused} == {(1, "the provider answered 422")}
    assert Counter(found.calls) == Counter(accepted)
