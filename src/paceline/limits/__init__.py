"""May this run now? Plans, algorithms, decisions.

specs.py           the algorithms and their numbers       rates.py       rate strings: 10/minute
rate_text.py       one rate as text                       calendar_edges.py  days, weeks and months of a zone
model.py           what a plan and a decision are
algorithms.py      the arithmetic, pure
chain.py           one decision over many plans, pure
holds.py           what a store records of a reservation, pure
ports.py           what a limiter needs: a store, a registry of plans, an observer
limiter.py         AsyncLimiter, for event loops          _blocking.py   Limiter, generated from it
active_plans.py    what both have: plans, store health, fast paths
plan_book.py       the plans in force; keys, plan names and costs checked and made a chain
plan_loader.py     plans loaded in the background          live_plans.py  plans changed at run time
plan_documents.py  plans as documents                      toml_plans.py  plans from a file
settings_file.py   a limiter from paceline.toml and PACELINE_…
fast_path.py       one unit under one plan, decided in this process
local_lease.py     tokens taken many at a time             locks.py       a lock for short critical sections
store_health.py    circuit breaker and failure policy      observing.py   observers that raise
wait_queues.py     fair waiting
reservations.py    what a reservation accepts             renewals.py    places renewed while a block runs
handles.py         a reservation to settle, places to leave
keys.py            the key of a request                   addresses.py   the client's address behind proxies
headers.py         decisions as HTTP fields
stores/            memory.py  sql.py  redis.py  lua/: by URL scheme
"""
