"""Everything at once on real servers, with faults that a seed plans, and a checker that reads what happened.

`make torture MINUTES=5 SEED=7` starts PostgreSQL, Redis and Kafka, two services and six workers, a bank and an SMS
provider. Clients call them, and log each call when it begins and when it ends (`history.py`). Meanwhile processes and
servers are killed and frozen, and links are slow, silent or cut (`faults.py`, `links.py`). At the end everything heals,
and `checker/` decides from the log alone whether every guarantee held. It shares no code with paceline.

The seed decides the faults and what the clients ask for. How processes interleave is the machine's choice, so the same
seed is the same plan, not the same run; the log is kept, and `--check` reads it again.
"""
