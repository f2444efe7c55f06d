"""Most decisions without a call to the store: each process leases tokens, spends them alone, and returns the rest.

Run it:  python examples/leases.py

    four processes asked 1600 times; admitted at most 1000: True
"""

from __future__ import annotations

import multiprocessing
import os

from paceline import LeasePolicy, Limiter, Plan, TokenBucket

PLANS = [Plan("searches", TokenBucket(capacity=1000, per_second=0.01))]


def search(url: str) -> int:
    """How many of 400 searches of this process were allowed."""
    limiter = Limiter(url, plans=PLANS, lease=LeasePolicy(longest=1, share=0.1))
    allowed = sum(limiter.acquire("acme", "searches").allowed for _ in range(400))
    limiter.close()  # what is left of the lease goes back
    return allowed


if __name__ == "__main__":
    store = f"host://example-leases-{os.getpid()}?megabytes=1"  # redis://… for more than one host
    with multiprocessing.Pool(4) as pool:
        admitted = sum(pool.map(search, [store] * 4))
    print("four processes asked 1600 times; admitted at most 1000:", admitted <= 1000)
