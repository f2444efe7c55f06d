"""May this run now? Plans, algorithms, decisions.

model.py        what a plan and a decision are
algorithms.py   the arithmetic, pure
chain.py        one decision over many plans, pure
ports.py        what is needed from a store, a registry, an observer
"""
