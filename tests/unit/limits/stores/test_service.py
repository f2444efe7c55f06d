"""Limiters on a service, which a small server stands for: what they send, and what they do without it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from paceline import AsyncLimiter, Limiter, Plan
from paceline.errors import ConfigurationError
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.model import Decision
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.limits.wire import calls_of, dump_decision
from tests.unit.test_service_client import Server, answer, serving

ALLOWED = dump_decision(Decision.of(True, 4, 5, 0, 60_000_000, "gold"))


class Service(Server):
    """Decides in memory, as the real one does."""

    def __init__(self) -> None:
        super().__init__([])
        self.store = AsyncMemoryLimitStore(MemoryLimitStore())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except EOFError:
                break
            length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.requests.append(({}, body))
            results = [{"ok": await self._result(call)} for call in calls_of(body)]
            writer.write(answer({"results": results}))
        writer.close()

    async def _result(self, call: Any) -> Any:
        if call.op == "plans":
            return {"gold": {"rate": "5/minute"}}
        return dump_decision(await self.store.decide(call.chain, hold=call.hold))


def limiting(server: Server, **options: Any) -> AsyncLimiter:
    return AsyncLimiter(server.url, plans=[Plan("gold", "5/minute")], **options)


async def opened(service: Service) -> asyncio.Server:
    listening = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    return listening


async def test_calls_of_one_turn_of_the_event_loop_are_one_request() -> None:
    service = Service()
    async with await opened(service), AsyncLimiter(service.url, plans=[Plan("gold", "5/minute")]) as limiter:
        decisions = await asyncio.gather(*(limiter.acquire("u", "gold") for _ in range(8)))
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 3
    assert len(service.requests) == 1


async def test_without_plans_those_of_the_service_are_in_force() -> None:
    service = Service()
    async with await opened(service):
        async with AsyncLimiter(service.url) as limiter:
            assert (await limiter.acquire("u", "gold")).limit == 5

        def acquire() -> Decision:
            with Limiter(service.url) as limiter:
                return limiter.acquire("u", "gold")

        assert (await asyncio.to_thread(acquire)).remaining == 3


async def test_with_leases_most_decisions_need_no_call() -> None:
    service = Service()
    lease = LeasePolicy(longest=60, share=0.5)
    plans = [Plan("gold", "1000/hour")]
    async with await opened(service), AsyncLimiter(service.url, plans=plans, lease=lease) as limiter:
        decisions = [await limiter.acquire("u", "gold") for _ in range(300)]
        assert all(decision.allowed for decision in decisions)
        assert len(service.requests) < 30


async def test_a_decision_whose_answer_is_lost_is_no_second_charge() -> None:
    """The failure policy decides. A reservation has an id, and is asked for again."""
    lost, good = b"", answer({"results": [{"ok": ALLOWED}]})
    async with serving(good, lost, good, lost, good) as server, limiting(server, on_error="closed") as limiter:
        assert (await limiter.acquire("u", "gold")).allowed
        assert (await limiter.acquire("u", "gold")).degraded
        assert len(server.requests) == 2
        assert (await limiter.acquire("u", "gold")).allowed
        assert (await limiter.reserve("u", "gold", 2)).decision.allowed
        assert len(server.requests) == 5


async def test_an_error_of_one_call_is_its_own() -> None:
    results = [{"ok": ALLOWED}, {"error": "unavailable", "detail": "the database is away"}]
    async with serving(answer({"results": results})) as server, limiting(server, on_error="closed") as limiter:
        first, second = await asyncio.gather(*(limiter.acquire("u", "gold") for _ in range(2)))
    assert (first.degraded, second.degraded, second.allowed) == (False, True, False)


async def test_a_token_that_is_not_valid_is_an_error_and_no_outage() -> None:
    refusal = answer({"detail": "send a valid token"}, 401)
    async with serving(refusal) as server, limiting(server, token="old") as limiter:
        with pytest.raises(ConfigurationError, match="send a valid token"):
            await limiter.acquire("u", "gold")


def test_a_token_is_for_a_service() -> None:
    with pytest.raises(ConfigurationError, match="token: is for a paceline service"):
        Limiter("redis://127.0.0.1:1", token="secret")
