"""An LLM API that limits requests and tokens: a call waits for both at once, and is charged what it really used.

Run it:  python examples/llm.py

    reserved 400 tokens, used 150
    reserved 400 tokens, used 150
    reserved 400 tokens, used 150
    three estimates of 400 fitted into 1000, as each was settled at once
"""

from __future__ import annotations

import asyncio

from paceline import Downstream
from paceline.downstream.signals import OpenAISignals

llm = Downstream(
    "openai",
    "memory://",  # redis://… for many processes
    limits={"requests": "500/minute", "tokens": "1000/hour"},
    signals=OpenAISignals(),
)


async def complete(prompt: str) -> dict[str, dict[str, int]]:
    """Stands for `await client.chat.completions.create(…)`."""
    return {"usage": {"total_tokens": 150}}


async def ask(prompt: str, estimate: int) -> None:
    async with llm.call({"tokens": estimate}, timeout=5) as call:
        answer = await complete(prompt)
        used = answer["usage"]["total_tokens"]
        call.settle(tokens=used)
        print(f"reserved {estimate} tokens, used {used}")


async def main() -> None:
    for prompt in ("What is a permit?", "And a lease?", "And a slot?"):
        await ask(prompt, estimate=400)
    print("three estimates of 400 fitted into 1000, as each was settled at once")
    await llm.close()


if __name__ == "__main__":
    asyncio.run(main())
