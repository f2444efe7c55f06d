"""The bank: a client of its payment API, and a simulator of it.

`python -m paceline_payments.downstream --port 9090 --tps 50 --fail 0.05 --latency-ms 20` serves the simulator.
"""
