"""Two limits decided as one: a call is charged under both, or under neither.

Run it:  python examples/several_limits.py

    ada: yes, 1 left of the minute's
    ada: yes, 0 left of the minute's
    ada: no, user says wait
    bob: yes, 1 left of the minute's
    eve: no, everybody says wait
    charged to eve: 0
"""

from __future__ import annotations

from paceline import Limiter, Plan

limiter = Limiter(plans=[Plan("everybody", "3/minute"), Plan("user", "2/minute")])

for name in ("ada", "ada", "ada", "bob", "eve"):
    decision = limiter.acquire_chain([("all", "everybody", 1), (name, "user", 1)])
    if decision.allowed:
        print(f"{name}: yes, {limiter.peek(name, 'user').remaining} left of the minute's")
    else:
        print(f"{name}: no, {decision.plan} says wait")
print("charged to eve:", 2 - limiter.peek("eve", "user").remaining)
