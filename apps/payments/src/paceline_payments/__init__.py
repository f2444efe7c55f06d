"""Payments: half a million due at 16:00, and a downstream with a hard limit on its call rate.

parsing.py        a payment of JSON or CSV, checked       rules.py   the bank's rules, fees, value dates
intake.py         phase A: check, book a slot, queue      feed.py, intake_topic.py   many at once
execution.py      phase B: call the downstream, notify    notifier.py
workflows.py      both phases on Temporal                 serialization.py   what travels between processes
downstream/       the client of the bank, its rate gate, and a simulator
"""
