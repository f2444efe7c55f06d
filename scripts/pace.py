"""README's animation: orders arrive ragged and leave flat, on the console's first page; a real worker runs them."""

from __future__ import annotations

import asyncio
import io
import random
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect

from paceline import Tasks

PROGRAM = """
from paceline import Tasks

tasks = Tasks("sqlite:///paceline.db")


@tasks.task(rate="50/second")
async def order() -> None: ...
"""
PAST_SECONDS = 280
"""As many as the picture shows."""
CUSTOMERS = [max(0, round(random.Random(second).gauss(34, 25))) for second in range(PAST_SECONDS + 120)]
CUSTOMERS[150] = CUSTOMERS[PAST_SECONDS + 20] = 900
"""Orders per second: ragged, and a feed at once."""
FRAMES, SECONDS, FASTER = 40, 2.0, 10
"""So many pictures, one every two seconds, played ten times as fast."""
WIDTH, COLOURS = 860, 48


def animate(browser: Browser, url: str, directory: Path, path: Path) -> None:
    """Takes pictures of *Now*, from the service at `url` whose database is in the directory. What they show, happens:
    for six minutes."""
    (directory / "orders.py").write_text(PROGRAM)
    worker = [sys.executable, "-m", "paceline", "worker", "orders:tasks"]
    customers = [sys.executable, str(Path(__file__).resolve()), f"sqlite:///{directory / 'paceline.db'}"]
    with (
        subprocess.Popen(worker, cwd=directory, stderr=subprocess.DEVNULL) as working,
        subprocess.Popen(customers) as ordering,
    ):
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900}, base_url=url, color_scheme="light")
            page.goto("/#/now")
            picture = page.locator("figure.flow").first
            expect(picture).to_be_visible(timeout=60_000)  # the worker is at work
            page.wait_for_timeout(PAST_SECONDS * 1000)
            frames: list[Image.Image] = []
            for _ in range(FRAMES):
                frames.append(_small(picture.screenshot(), frames[0] if frames else None))
                page.wait_for_timeout(SECONDS * 1000)
        finally:
            working.terminate()
            ordering.terminate()
    each = round(1000 * SECONDS / FASTER)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=each, loop=0, optimize=True)


def _small(png: bytes, first: Image.Image | None) -> Image.Image:
    """A frame, with the size and the colours of the first one."""
    taken = Image.open(io.BytesIO(png)).convert("RGB")
    taken = taken.resize((WIDTH, round(taken.height * WIDTH / taken.width)), Image.Resampling.LANCZOS)
    if first is None:
        return taken.quantize(COLOURS, dither=Image.Dither.NONE)
    frame = Image.new("RGB", first.size, "white")
    frame.paste(taken)
    return frame.quantize(palette=first, dither=Image.Dither.NONE)


async def order(url: str) -> None:
    """Orders of one second after the other."""
    tasks = Tasks(url)

    @tasks.task(rate="50/second")
    async def order() -> None: ...

    async with tasks:
        for many in CUSTOMERS:
            await order.enqueue_many([()] * many)
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(order(sys.argv[1]))
