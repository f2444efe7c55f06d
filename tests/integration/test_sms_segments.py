"""How many SMS a text takes, and in which encoding: as Twilio's own calculator says (npm: sms-segments-calculator)."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from paceline_sms.segments import count_segments

MODULES = Path(__file__).parents[2] / ".venv" / "javascript" / "node_modules"
PROGRAM = """
const {SegmentedMessage} = require('sms-segments-calculator')
const texts = JSON.parse(require('fs').readFileSync(0))
const counted = texts.map(text => new SegmentedMessage(text)).map(sms => [sms.encodingName, sms.segmentsCount])
process.stdout.write(JSON.stringify(counted))
"""
WRITTEN = "hello .Grüße .€.^.{.é.e\u0301.ж.日本.नमस्ते .한국어.각.שלום.مرحبا.สวัสดี.க்ஷி.\r\n.\u200b.\u200d.\ufe0f.`"
EMOJI = "👍🏽.❤️.☝🏻.🇩🇪.🇫.🥰.1️⃣.🏳️\u200d🌈.👩🏿\u200d🚀.👨\u200d👩\u200d👧\u200d👦.👩\u200d❤️\u200d💋\u200d👨"
FAMILIES = "🤷🏽\u200d♂️.🧑🏽\u200d💻.🦸🏽\u200d♀️"
WORDS = f"{WRITTEN}.{EMOJI}.{FAMILIES}".split(".")


def require_calculator() -> None:
    if not (MODULES / "sms-segments-calculator").is_dir():
        reason = "Twilio's calculator is not installed: make lint installs it, with npm"
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)


def text(draw: random.Random) -> str:
    """Mostly what people write, mostly longer than one SMS."""
    if draw.random() < 0.4:
        return "".join(draw.choices("abc ABC,.€^{[äöü@£\n", k=draw.randint(1, 700)))
    words, length = draw.sample(WORDS, draw.randint(1, 8)), draw.randint(1, 400)
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        parts.append(draw.choice(words) * draw.randint(1, 3) + "x" * draw.randint(0, 5))
    return "".join(parts)


def test_ten_thousand_texts_are_counted_as_by_twilio() -> None:
    require_calculator()
    draw = random.Random(40)
    texts = [text(draw) for _ in range(10_000)]
    environment = {**os.environ, "NODE_PATH": str(MODULES)}
    answer = subprocess.run(
        ["node", "-e", PROGRAM],
        input=json.dumps(texts),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    theirs = [tuple(counted) for counted in json.loads(answer.stdout)]
    assert len({number for _, number in theirs}) > 5
    differing = [
        (sms, ours, counted)
        for sms, counted in zip(texts, theirs, strict=True)
        if (ours := count_segments(sms)) != counted
    ]
    assert differing == []
