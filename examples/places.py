"""At most two exports at once, over all processes. A place is free when its block ends, or its process dies.

Run it:  python examples/places.py

    monday: exporting
    tuesday: exporting
    wednesday: both places are taken
    thursday: exporting
"""

from __future__ import annotations

from contextlib import ExitStack

from paceline import Concurrency, Limiter, Plan

limiter = Limiter(plans=[Plan("exports", Concurrency(limit=2))])


def export(day: str, running: ExitStack) -> None:
    place = running.enter_context(limiter.hold("acme", "exports"))
    print(f"{day}: {'exporting' if place.allowed else 'both places are taken'}")


with ExitStack() as running:
    export("monday", running)
    export("tuesday", running)
    export("wednesday", running)
with ExitStack() as running:
    export("thursday", running)
