"""The bank and the SMS provider, in a process of their own that no fault touches.

Both write each call to the log before they answer it. What they do with a call depends on the seed, its key and how
often it came: they are slow, out of order, refuse, execute and lose the answer. The process ends when its input does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.bank import Bank, Reply
from tests.faults.sms_provider import HttpProvider
from tests.torture.history import Recorder


class RecordedBank(Bank):
    """Executes each key once at most, or refuses it for ever."""

    def __init__(self, seed: int, recorder: Recorder) -> None:
        super().__init__(default=self._decide)
        self._seed = seed
        self._recorder = recorder
        self._seen: Counter[str] = Counter()

    def _decide(self, key: str) -> Reply:
        self._seen[key] += 1
        if Random(f"{self._seed} {key}").random() < 0.05:
            return Reply(422, {"reason": "account closed"})
        draw = Random(f"{self._seed} {key} {self._seen[key]}").random()
        if draw < 0.04:
            return Reply(503, {"reason": "out of order"})
        if draw < 0.09:
            return Reply(executes=True, silent=True)
        if draw < 0.11:
            return Reply(500, {"reason": "the answer was lost"}, executes=True)
        if draw < 0.2:
            return Reply(delay=draw * 10)
        return Reply(delay=draw * 0.05)

    def _books(self, key: str) -> Reply:
        if self._seen[key] and Random(f"{self._seed} {key}").random() < 0.05:
            return Reply(200, {"status": "REJECTED", "reason": "account closed"})
        return super()._books(key)

    def _reply(self, method: str, key: str) -> Reply:
        reply = super()._reply(method, key)
        status = 0 if reply.silent else reply.status
        self._recorder.write("bank", method=method, key=key, status=status, executed=key in self.executed)
        return reply


class RecordedProvider(HttpProvider):
    """Takes a message whenever it is sent; sometimes slowly, sometimes without an answer, sometimes later."""

    def __init__(self, seed: int, recorder: Recorder) -> None:
        super().__init__()
        self._seed = seed
        self._recorder = recorder
        self._seen: Counter[str] = Counter()

    async def _answer(self, call: dict[str, Any], answered: dict[str, float | None]) -> int:
        message_id = call["messageId"]
        self._seen[message_id] += 1
        draw = Random(f"{self._seed} {message_id} {self._seen[message_id]}").random()
        status = 503 if draw < 0.03 else 500 if draw < 0.05 else 200
        taken = draw >= 0.03
        self._recorder.write(
            "sms", user=call["userId"], text=call["message"], id=message_id, status=status, taken=taken
        )
        await asyncio.sleep(draw if 0.05 <= draw < 0.1 else 0.01)
        return status


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    recorder = Recorder(options.log)
    provider = RecordedProvider(options.seed, recorder)
    server = await asyncio.start_server(provider._serve, "127.0.0.1", 0)
    with RecordedBank(options.seed, recorder) as bank:
        sys.stdout.write(f"{bank.url.rpartition(':')[2]} {server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
