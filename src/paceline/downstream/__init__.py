"""Calls to another system, at its pace.

`permits.py` and `state.py` decide, purely; `rate_gate.py` waits for permits, `breaker.py` for an outage to end;
`verdicts.py` says what became of a call;
`downstream.py` is the use case, `_blocking.py` its twin for threads; `signals/` read what the other side says of its
limits; `stores/` keep what all processes share.
"""
