"""The SMS gateway: who may send how much, the message log, the sender, and what the attempts tell.

model.py      quotas, messages, outcomes; the window's arithmetic, pure
ports.py      what it needs: a ledger, a cache, a message log, senders, an analytics store
intake.py     POST /api/config and POST /api/send
direct.py     deciding on the SQL ledger: lock, decide, publish, count, commit
cached.py     deciding in Redis, with the ledger kept in step (gate.py, countsync.py)
delivery.py   the sender: at least once, each message id once
attempts.py   every attempt as an event, off the send path
analytics.py  rates, peaks and anomalies from those events
reading.py    the life of a reader of the log
"""
