"""Somebody else's language model, as a process of its own:
`python -m tests.faults.llm_provider REQUESTS TOKENS WINDOW`.

It answers as OpenAI's and Anthropic's documents show, and enforces requests and tokens per window, with their fields:
two buckets that are refilled all the time, `REQUESTS` and `TOKENS` large. It charges the prompt when a request arrives,
and the answer when it was written. What a request really costs is the metadata's `tokens`. It prints its port.
`GET /stats` returns what it has seen.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

LATENCY = 0.05
"""Seconds to write an answer."""


class Bucket:
    """A budget that is refilled all the time."""

    def __init__(self, limit: float, window: float) -> None:
        self.limit = limit
        self._per_second = limit / window
        self._left = limit
        self._at = time.monotonic()

    def left(self) -> float:
        now = time.monotonic()
        self._left = min(self.limit, self._left + (now - self._at) * self._per_second)
        self._at = now
        return self._left

    def spend(self, cost: float) -> None:
        self._left = self.left() - cost

    def seconds_until(self, level: float) -> float:
        return max(level - self.left(), 0) / self._per_second


class Provider:
    """The state of the stand-in."""

    def __init__(self, requests: float, tokens: float, window: float) -> None:
        self.requests, self.tokens = Bucket(requests, window), Bucket(tokens, window)
        self.arrivals: list[float] = []
        self.refused = 0
        self.spent = 0

    def fields(self) -> dict[str, str]:
        fields = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            fields[f"x-ratelimit-limit-{name}"] = f"{bucket.limit:.0f}"
            fields[f"x-ratelimit-remaining-{name}"] = f"{max(int(bucket.left()), 0)}"
            fields[f"x-ratelimit-reset-{name}"] = f"{bucket.seconds_until(bucket.limit) * 1000:.0f}ms"
        return fields

    async def admit(self, request: web.Request) -> tuple[dict[str, Any], int, int] | web.Response:
        """The body, and the tokens of prompt and answer; or the refusal."""
        body = await request.json()
        prompt = max(1, len(json.dumps(body.get("messages"))) // 4)
        total = int(body.get("metadata", {}).get("tokens", prompt + 10))
        prompt = min(prompt, total)
        self.arrivals.append(time.monotonic())
        if self.requests.left() < 1 or self.tokens.left() < prompt:
            self.refused += 1
            error = {"error": {"message": "Rate limit reached", "type": "tokens", "code": "rate_limit_exceeded"}}
            return web.json_response(error, status=429, headers=self.fields() | {"retry-after-ms": "100"})
        self.requests.spend(1)
        self.tokens.spend(prompt)
        await asyncio.sleep(LATENCY)
        self.tokens.spend(total - prompt)
        self.spent += total
        return body, prompt, total - prompt

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        admitted = await self.admit(request)
        if isinstance(admitted, web.Response):
            return admitted
        body, prompt, written = admitted
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        message = {"role": "assistant", "content": "Because of Rayleigh scattering."}
        choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        answer = {"id": "chatcmpl-123", "object": "chat.completion", "created": 1677652288, "model": body["model"]}
        if not body.get("stream"):
            return web.json_response(answer | {"choices": [choice], "usage": usage}, headers=self.fields())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | self.fields())
        await response.prepare(request)
        answer["object"] = "chat.completion.chunk"
        for word in ("Because ", "of ", "Rayleigh ", "scattering."):
            part = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            await _send(response, answer | {"choices": [part], "usage": None})
        await _send(response, answer | {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def message(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/messages`."""
        admitted = await self.admit(request)
        if isinstance(admitted, web.Response):
            return admitted
        body, prompt, written = admitted
        content = [{"type": "text", "text": "Because of Rayleigh scattering."}]
        answer = {"id": "msg_013", "type": "message", "role": "assistant", "model": body["model"], "content": content}
        usage = {"input_tokens": prompt, "output_tokens": written}
        return web.json_response(answer | {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage})

    async def stats(self, _: web.Request) -> web.Response:
        """`GET /stats`."""
        return web.json_response({"arrivals": self.arrivals, "refused": self.refused, "spent": self.spent})


async def _send(response: web.StreamResponse, document: Any) -> None:
    await response.write(f"data: {json.dumps(document)}\n\n".encode())


async def main(requests: float, tokens: float, window: float) -> None:
    provider, app = Provider(requests, tokens, window), web.Application()
    app.router.add_post("/v1/chat/completions", provider.complete)
    app.router.add_post("/v1/messages", provider.message)
    app.router.add_get("/stats", provider.stats)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)


class RunningProvider:
    """A provider that runs."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def stats(self) -> dict[str, Any]:
        """`arrivals`, and how many were `refused`, and the tokens that were `spent`."""
        with urllib.request.urlopen(f"{self.address}/stats", timeout=10) as response:
            stats: dict[str, Any] = json.load(response)
            return stats


@contextmanager
def providing(requests: float, tokens: float, window: float = 60.0) -> Iterator[RunningProvider]:
    command = [sys.executable, "-m", "tests.faults.llm_provider", str(requests), str(tokens), str(window)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield RunningProvider(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(main(*map(float, sys.argv[1:])))
