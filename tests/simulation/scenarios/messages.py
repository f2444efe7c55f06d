"""The SMS gateway on SQLite: quota never exceeded, every accepted message delivered or held as unknown, none sent that
was refused."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import timedelta
from functools import partial

import sqlalchemy as sa

from paceline.errors import StoreUnavailable
from paceline.sql.outbox import SqlOutbox
from paceline.sql.outbox_tables import outbox
from paceline_sms.delivery import SENDER_GROUP, Delivery
from paceline_sms.intake import TOPIC, Intake
from paceline_sms.model import Attempt
from paceline_sms.ports import NullObserver, Status
from paceline_sms.provider import Accepted, Rejected, SmsMessage, Unavailable
from paceline_sms.provider_chain import NamedProvider, ProviderChain
from paceline_sms.readers import Readers
from paceline_sms.relay import Relay
from paceline_sms.stores.sql import SqlDeliveryStore, SqlQuotaStore
from paceline_sms.stores.tables import notification_message
from paceline_sms.topics import parked_topic
from tests.simulation.loop import Process
from tests.simulation.network import Faults, SimulatedDatabase
from tests.simulation.sqlite import fresh_engine
from tests.simulation.world import Violation, World

USERS = 3
LIMIT, MINUTES = 8, 1
SECONDS = 15.0
LEASE = 5.0


class Network:
    """The provider's side: what it took, and what it refused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.taken: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.order: dict[int, list[str]] = defaultdict(list)

    def take(self, message: SmsMessage) -> Accepted | Rejected:
        draw = self._world.random.random()
        if draw < 0.02 and not self.taken[message.id]:
            self.refused.add(message.id)
            return Rejected("no such number")
        self._world.note(f"the provider takes {message.id}")
        self.taken[message.id] += 1
        self.order[message.user_id].append(message.id)
        return Accepted(f"sms-{message.id}")


class RemoteProvider:
    """A provider over a link; its answer may be lost."""

    def __init__(self, world: World, process: Process, server: Process, network: Network, engine: sa.Engine) -> None:
        self._world = world
        self._engine = engine
        self._random = world.random
        self._link = world.link(process, server, 3.0)
        self._network = network

    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        status = _status(self._engine, message.id)
        self._world.note(f"sends {message.id}, which is {status}")
        if status == Status.SENT:
            self._world.violated(f"{message.id} is sent again, after somebody else has sent it and noted so")
        await asyncio.sleep(self._random.expovariate(1 / 0.2))
        return await self._link.call(lambda: self._network.take(message), Unavailable)


async def play(world: World) -> None:
    """Users send more than they may, through two gateways; one to three senders deliver."""
    random = world.random
    server, wire, network = world.server("database"), world.server("provider"), Network(world)
    engine = fresh_engine()
    await _gateway(SimulatedDatabase(engine)).configure(0, LIMIT, MINUTES)
    for user in range(1, USERS):
        await _gateway(SimulatedDatabase(engine)).configure(user, LIMIT, MINUTES)
    accepted: set[str] = set()
    refused: set[str] = set()
    """Ids of messages that were limited, and never accepted as far as their callers know."""
    doubtful: set[str] = set()
    counted: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    """By user: the end of the window, the place in it, and the message."""

    async def send(intake: Intake, number: int) -> None:
        user = random.randrange(USERS)
        text, key = f"hello {number}", f"{user}-{number}"
        message_id = Attempt.of(user, text, key).message_id
        try:
            verdict = await intake.send(user, text, key=key)
        except StoreUnavailable:
            doubtful.add(message_id)
            return
        if not verdict.allowed:
            refused.add(message_id)
            return
        accepted.add(message_id)
        if not verdict.replayed:
            counted[user].append((verdict.at_ms + verdict.reset_after_ms, verdict.used, message_id))

    async def gateway(process: Process) -> None:
        intake = _gateway(SimulatedDatabase(engine, world.link(process, server)))
        while True:
            await send(intake, random.randrange(60))
            await asyncio.sleep(random.expovariate(1 / 0.7))

    async def sender(process: Process) -> None:
        database = SimulatedDatabase(engine, world.link(process, server))
        log = SqlOutbox(database, reader_lease=timedelta(seconds=LEASE))
        store = SqlDeliveryStore(database, topic=TOPIC, lease=timedelta(seconds=LEASE))
        providers = ProviderChain(
            [NamedProvider("p", RemoteProvider(world, process, wire, network, engine))], timeout=5.0
        )
        readers = Readers(NullObserver())

        def delivery() -> Delivery:
            return Delivery(
                lambda: log.read(TOPIC, SENDER_GROUP),
                store,
                providers,
                topic=TOPIC,
                lease_seconds=LEASE,
                concurrency=8,
                attempts=2,
            )

        readers.start("sender", lambda stop: delivery().run(stop))
        readers.start("relay", Relay(partial(log.read, parked_topic(TOPIC), "relay"), log, TOPIC).run)
        await asyncio.sleep(random.uniform(5, 200))
        await readers.close()
        await sender(process)

    for number in range(2):
        world.process(f"gateway-{number}", gateway)
    for number in range(random.randint(1, 3)):
        world.process(f"sender-{number}", sender)
    await world.endure(SECONDS)
    world.heal()
    for process in world.loop.processes:
        if process.name.startswith("gateway"):
            world.loop.kill(process)

    def is_settled(message_id: str) -> bool:
        if network.taken[message_id] or message_id in network.refused:
            return True
        # The provider has it or not: nobody knows, so it is held for a receipt.
        return _status(engine, message_id) == Status.UNKNOWN

    def is_done() -> bool:
        if all(map(is_settled, accepted)):
            return True
        if not _in_outbox(engine):
            raise Violation("messages were accepted, are not sent, and are nowhere")
        return False

    await world.until(is_done, 900, "messages are not sent")
    for user, places in counted.items():
        for end_ms, count in Counter(end_ms for end_ms, _, _ in places).items():
            if count > LIMIT:
                raise Violation(f"user {user} was given {count} messages in the window until {end_ms}, of {LIMIT}")
    for message_id in refused - accepted - doubtful:
        if network.taken[message_id]:
            raise Violation(f"{message_id} was limited, and sent")
    if world.faults == Faults():
        for user, places in counted.items():
            order = [message_id for _, _, message_id in sorted(places) if message_id not in network.refused]
            if network.order[user] != order:
                raise Violation(f"the messages of user {user} were sent twice, or out of order")


def _status(engine: sa.Engine, message_id: str) -> str | None:
    with engine.connect() as connection:
        query = sa.select(notification_message.c.status).where(notification_message.c.message_id == message_id)
        return connection.execute(query).scalar()


def _in_outbox(engine: sa.Engine) -> int:
    """How many messages wait, in order or for their time."""
    with engine.connect() as connection:
        query = sa.select(sa.func.count()).where(outbox.c.topic.in_([TOPIC, parked_topic(TOPIC)]))
        return connection.execute(query).scalar_one()


def _gateway(database: SimulatedDatabase) -> Intake:
    return Intake(SqlQuotaStore(database, topic=TOPIC), SqlOutbox(database))
