"""Celery's prefork workers that share `host://`, with a broker of files:

    python -m celery -A tests.faults.host_tasks worker --pool prefork --concurrency 4

`ask` writes its process and whether it was admitted to ANSWERS; STORE-URL is in HOST_STORE, BROKER is a folder.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import Celery

from paceline import Limiter
from tests.faults.host_workers import RATE

FOLDER, ANSWERS = os.environ["BROKER"], Path(os.environ["ANSWERS"])
DEADLY = Path(f"{ANSWERS}.deadly")
"""Kills the process of the next task. It is killed at work: idle, it may hold a lock of Celery's pool."""

app = Celery("host", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": FOLDER, "data_folder_out": FOLDER, "polling_interval": 0.05}
# What was handed to a worker that is dead goes to another.
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True
limiter = Limiter(os.environ["HOST_STORE"])
# The store is open when the workers are forked.
limiter.acquire("parent", RATE)


@app.task(name="ask", ignore_result=True)  # type: ignore[untyped-decorator]
def ask() -> None:
    time.sleep(0.02)  # else one process does all of them
    if DEADLY.exists():
        DEADLY.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    line = f"{os.getpid()} {200 if limiter.acquire('visitor', RATE) else 429}\n"
    with ANSWERS.open("ab", buffering=0) as answers:
        answers.write(line.encode())
