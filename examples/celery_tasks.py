"""A Celery task behind a limit that holds over all workers.

Run it here, without a broker:  python examples/celery_tasks.py
Run it on workers:  BROKER=redis://cache celery --app examples.celery_tasks worker
"""

from __future__ import annotations

import os

from celery import Celery

from paceline import Limiter, Plan
from paceline.errors import RateLimitExceeded
from paceline.integrations.celery import rate_limit

broker = os.environ.get("BROKER", "memory://")
app = Celery("letters", broker=broker)
limiter = Limiter(broker, plans=[Plan("letters", "2/minute"), Plan("express", "3/minute")])


def plan(user: str, text: str) -> str:
    """Express letters have a limit of their own."""
    return "express" if text.startswith("!") else "letters"


@rate_limit(limiter, plan, key=lambda user, text: user, exempt=lambda user, text: user == "root")
@app.task  # type: ignore[untyped-decorator]  # Celery publishes no types
def send(user: str, text: str) -> str:
    return f"sent {text!r} to {user}"


def main() -> None:
    # On a worker, a call without room goes back to the broker until there is some; called directly, it is refused.
    for user, text in (("ada", "one"), ("ada", "two"), ("ada", "three"), ("ada", "!now"), ("root", "four")):
        try:
            print(send(user, text))
        except RateLimitExceeded as refusal:
            print(f"refused {text!r}: plan {refusal.decision.plan} has no room")


if __name__ == "__main__":
    main()
