"""The worker: claims items and executes them in this process.

- `loop`: runs until it is stopped, and keeps the pace: `DispatchWorker`;
- `cycle`: one look at an item type: recovery, claim, starts, record;
- `engine`: one execution from its claim to the report of its outcome; `run` is its state;
- `places`, `threads`: how much runs at once, coroutines and plain functions apart;
- `start_check`: what must hold right before an execution begins: claim, kill switch, limit;
- `heartbeats`: of the worker itself; `outcome_reporter`: group commit of outcomes;
- `dispatching`: all of it together, around a block.
"""
