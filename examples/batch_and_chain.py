"""A batch calls back when all of its calls have ended; a chain hands each result to the next call.

Run it:  python examples/batch_and_chain.py

    2 of 3 pages rendered, 1 failed
    page 7 in a red book
"""

from __future__ import annotations

import asyncio

from paceline import BatchOutcome, Tasks

tasks = Tasks("memory://")


@tasks.task(retries=0)
async def render(page: int) -> str:
    if page == 3:
        raise ValueError("there is no page 3")
    return f"page {page}"


@tasks.task
async def rendered(outcome: BatchOutcome) -> str:
    return f"{outcome.succeeded} of {outcome.total} pages rendered, {outcome.failed} failed"


@tasks.task
async def bind(page: str, colour: str) -> str:
    return f"{page} in a {colour} book"


async def main() -> None:
    async with tasks.in_memory():  # in a program: tasks.running(), or `paceline worker` beside it
        key = await tasks.batch([render.call(page) for page in (1, 2, 3)], then=rendered)
        print(await rendered.result(f"{key}:done"))
        await tasks.chain(render.call(7), bind.call_with_result(colour="red"), key="book")
        print(await bind.result("book:2"))


if __name__ == "__main__":
    asyncio.run(main())
