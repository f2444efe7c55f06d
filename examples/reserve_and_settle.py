"""Pay for work whose cost is known only afterwards: reserve an estimate, settle the truth.

Run it:  python examples/reserve_and_settle.py

    reserved 800, 200 tokens left
    settled 650, 350 tokens left
    cancelled by an error, 350 tokens left
"""

from __future__ import annotations

from paceline import Limiter, Plan

limiter = Limiter(plans=[Plan("tokens", "1000/hour")])


def left() -> str:
    return f"{limiter.peek('team-a', 'tokens').remaining} tokens left"


with limiter.reserve("team-a", "tokens", 800) as reservation:
    print(f"reserved 800, {left()}")
    reservation.settle(650)
print(f"settled 650, {left()}")

try:
    with limiter.reserve("team-a", "tokens", 300):
        raise ConnectionError("the model did not answer")
except ConnectionError:
    print(f"cancelled by an error, {left()}")
