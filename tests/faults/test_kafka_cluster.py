"""Three Kafka brokers, of which one is killed and started again, and another frozen, under load: messages are accepted
and sent, payments are taken from their topic, and nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.kafka.log import KafkaLog
from paceline.kafka.topics import PARTITIONS
from paceline.messaging import Record
from paceline.slots.model import WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.testing import eventually
from paceline.testing.availability import available
from paceline.testing.servers.kafka.cluster import KafkaCluster
from paceline_payments.intake import PaymentIntake
from paceline_payments.intake_topic import PaymentTopic, rejected_topic
from paceline_payments.model import ITEM_TYPE
from paceline_sms.settings import SmsSettings
from tests.faults.test_notifications_sender import provider
from tests.integration.notification_gateway import Gateway, gateway
from tests.integration.test_payments_kafka import document
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

USERS = range(1, 9)
"""Of which each partition has some."""
EVERY = 0.5


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with available("kafka"), KafkaCluster() as cluster:
        yield cluster


class Load:
    """Callers that each send one record after the other, all of which must arrive at the other end."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        """The owner of each, by its id."""
        self.refused = 0

    async def send(self, user: int) -> str | None:
        """The id of what was acknowledged, or None."""
        raise NotImplementedError

    async def arrived(self) -> set[str]:
        raise NotImplementedError

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.gather(*(self._send_on(user, stop) for user in USERS))

    async def _send_on(self, user: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if (name := await self.send(user)) is None:
                self.refused += 1
            else:
                self.acknowledged[name] = user
            await asyncio.sleep(EVERY)

    async def go_on(self) -> None:
        """Until for each user, so on each partition, something is acknowledged from now on, and has arrived."""
        before = set(self.acknowledged)

        async def everybody() -> bool:
            new = (await self.arrived()).difference(before)
            return {self.acknowledged[name] for name in new if name in self.acknowledged} == set(USERS)

        await eventually(everybody, within=180, every=0.1)


class Messages(Load):
    """Messages, from the API to the provider."""

    def __init__(self, served: Gateway, delivered: list[str]) -> None:
        super().__init__()
        self._served = served
        self._delivered = delivered

    async def send(self, user: int) -> str | None:
        answer = await self._served.send(user, "Hello")
        assert answer.status_code in (200, 503), answer.text
        return str(answer.json()["messageId"]) if answer.status_code == 200 else None

    async def arrived(self) -> set[str]:
        return set(self._delivered)


class Payments(Load):
    """Payments, from another system's topic to where they are kept."""

    def __init__(self, log: KafkaLog, topic: str, store: MemoryPaymentStore, replicas: Mapping[str, int]) -> None:
        super().__init__()
        self._log = log
        self._replicas = replicas
        self._topic = topic
        self._store = store

    async def send(self, user: int) -> str | None:
        payment_id = f"p{uuid.uuid4().hex[:12]}"
        (failure,) = await self._log.publish([Record(self._topic, str(user), document(payment_id))])
        return payment_id if failure is None else None

    async def arrived(self) -> set[str]:
        return set(await self._store.find(list(self.acknowledged)))

    async def under_replicated(self) -> int:
        """How many partitions of the topic miss a replica, as the health check reports."""
        await self._log.ping()
        return self._replicas[self._topic]

    async def are_replicated(self) -> bool:
        return await self.under_replicated() == 0


@asynccontextmanager
async def taking_payments(bootstrap: str) -> AsyncIterator[Payments]:
    topic = f"payments-{uuid.uuid4().hex[:8]}"
    replicas: dict[str, int] = {}
    log = KafkaLog(bootstrap, topics=(topic, rejected_topic(topic)), report_replicas=replicas.update)
    queue, slot_store = MemoryQueueStore(), MemorySlotStore()
    await queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    store = MemoryPaymentStore(queue, slot_store)
    async with SlotScheduler(slot_store) as slots:
        await slots.configure("default", WindowPolicy(10_000, "PT4S"))
        intake = PaymentIntake(store, slots)
        stop = asyncio.Event()
        reading = asyncio.create_task(PaymentTopic(log, topic, intake.initiate).run(stop))
        yield Payments(log, topic, store, replicas)
        stop.set()
        await reading
        await intake.close()
    await log.close()


async def test_a_broker_is_killed_and_started_and_another_is_frozen(cluster: KafkaCluster, tmp_path: Path) -> None:
    with provider() as (provided, url):
        async with (
            gateway(
                database_url=f"sqlite:///{tmp_path / 'sms.db'}",
                kafka_bootstrap=cluster.bootstrap,
                sms={"sender": "inline", "webhook_url": url},
            ) as served,
            taking_payments(cluster.bootstrap) as payments,
        ):
            for user in USERS:
                assert (await served.configure(user, 1_000_000, 60)).status_code == 200
            messages = Messages(served, provided.calls)
            stop = asyncio.Event()
            load = asyncio.gather(messages.run(stop), payments.run(stop))

            async def go_on() -> None:
                await asyncio.gather(messages.go_on(), payments.go_on())

            await go_on()
            killed = cluster.leader(served.settings.section(SmsSettings).topic, 0)
            await asyncio.to_thread(killed.kill)
            await go_on()
            assert await payments.under_replicated() == PARTITIONS
            await asyncio.to_thread(cluster.start)
            await eventually(payments.are_replicated, within=60)
            frozen = cluster.leader(served.settings.section(SmsSettings).topic, 1)
            await asyncio.to_thread(frozen.pause)
            await go_on()
            await asyncio.to_thread(frozen.resume)

            stop.set()
            await load

            async def missing() -> dict[str, int]:
                """The owner of each that was acknowledged and has not arrived."""
                arrived = await messages.arrived() | await payments.arrived()
                acknowledged = messages.acknowledged | payments.acknowledged
                return {name: user for name, user in acknowledged.items() if name not in arrived}

            async def all_arrived() -> bool:
                return not await missing()

            with suppress(TimeoutError):
                await eventually(all_arrived, within=60)
            assert await missing() == {}
            # What was answered with 503 was not sent, and nothing was sent twice.
            assert Counter(provided.calls) == Counter(messages.acknowledged.keys())
