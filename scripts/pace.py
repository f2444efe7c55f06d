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
CUSTOMERS = [max(0, round(random.Random(second).gauss(30, 25))) for second in range(120)]
CUSTOMERS[30] = 900
"""Orders per second: ragged, and a feed at once."""
FRAMES, FRAMES_PER_SECOND, FASTER = 90, 2, 5
WIDTH = 860


def animate(browser: Browser, url: str, directory: Path, path: Path) -> None:
    """Takes a picture of *Now* every half second, and plays them five times as fast."""
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
            picture = page.get_by_role("img", name="ORDER")
            expect(picture).to_be_visible()
            page.wait_for_timeout(20_000)
            box = picture.bounding_box()
            assert box is not None
            clip = {"x": 32.0, "y": box["y"] - 40, "width": 1216.0, "height": box["height"] + 75}
            frames = []
            for _ in range(FRAMES):
                frames.append(_small(page.screenshot(clip=clip)))  # type: ignore[arg-type]
                page.wait_for_timeout(1000 / FRAMES_PER_SECOND)
        finally:
            working.terminate()
            ordering.terminate()
    each = round(1000 / FRAMES_PER_SECOND / FASTER)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=each, loop=0, optimize=True)


def _small(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    height = round(image.height * WIDTH / image.width)
    return image.resize((WIDTH, height), Image.Resampling.LANCZOS).quantize(32, dither=Image.Dither.NONE)


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
