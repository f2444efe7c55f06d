"""May this run now? Plans, algorithms, decisions.

model.py          what a plan and a decision are
algorithms.py     the arithmetic, pure
chain.py          one decision over many plans, pure
ports.py          what is needed from a store, a registry, an observer
plans.py          the plans in force; a caller's words checked and made a chain
live_plans.py     plans changed while limiters decide by them
documents.py      plans as documents; toml_plans.py reads them from a file
limiter.py        Limiter, for threads
async_limiter.py  AsyncLimiter, for event loops
waiting.py        fair lines
reservations.py   spend an estimate, settle later
holds.py          what a store remembers of that
leases.py         tokens taken many at a time
outage.py         while the store can't be asked; breaker.py
keys.py           whom a request counts against; addresses.py
headers.py        decisions as HTTP fields
"""
