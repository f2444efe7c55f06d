"""Deterministic simulation: the real code on an event loop with virtual time, over a network that fails by a seed.

One seed is one run: which process runs next, how long each message takes, what is lost, which processes crash or
freeze. The same seed gives the same run, so a failure can be replayed: `python -m tests.simulation --seed 7`.
"""
