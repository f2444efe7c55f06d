"""A bank that takes ten calls a second, and never sees an eleventh: one object for all processes that call it.

Run it:  python examples/downstream.py

    25 calls, answered in … s
    most that the bank saw in any second: 10
    paused: no call leaves
"""

from __future__ import annotations

import asyncio
import time

from paceline import Downstream, RateLimitExceeded

bank = Downstream("bank", "memory://", rate="10/second")  # sqlite:///, postgresql:// or redis:// for many processes
seen: list[float] = []


async def pay(number: int) -> None:
    async with bank.call():
        seen.append(time.monotonic())  # here your client posts to the bank


async def main() -> None:
    began = time.monotonic()
    await asyncio.gather(*(pay(number) for number in range(25)))
    print(f"25 calls, answered in {time.monotonic() - began:.1f} s")
    print("most that the bank saw in any second:", max(sum(a <= b < a + 1 for b in seen) for a in seen))

    await bank.pause("the bank's maintenance")
    try:
        async with bank.call(timeout=0.2):
            print("it left")
    except RateLimitExceeded:
        print("paused: no call leaves")
    await bank.close()


if __name__ == "__main__":
    asyncio.run(main())
