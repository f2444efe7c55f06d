"""`django.tasks` on the queue: a Django project whose tasks a real worker runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("django_tasks", reason="django-tasks is not installed")

SETTINGS = """
import os
USE_TZ = True
SECRET_KEY = "test"
INSTALLED_APPS = ["django_tasks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
TASKS = {
    "default": {
        "BACKEND": "paceline.integrations.django_tasks.PacelineBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": "sqlite:///shop.db", "database": "default"},
    }
}
"""
SHOP = """
from django_tasks import task

@task
def add(first: int, second: int = 1) -> int:
    return first + second

@task(takes_context=True, queue_name="mail", priority=50)
def greet(context, name: str) -> str:
    return f"{context.attempt} {name}"

@task
async def double(number: int) -> int:
    return number * 2

@task
def fail() -> None:
    raise ValueError("broken")
"""
PROGRAM = """
import time, django
django.setup()
from datetime import timedelta
from django.db import transaction
from django.utils import timezone
from django_tasks import default_task_backend
from django_tasks.exceptions import TaskResultDoesNotExist
from shop import add, double, fail, greet

default_task_backend.tasks.blocking.define()
results = [add.enqueue(1), add.enqueue(2, second=5), greet.enqueue("Ada"), double.enqueue(4), fail.enqueue()]
later = add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(7)
gone = []
try:
    with transaction.atomic():
        gone.append(add.enqueue(100))
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    results.append(add.enqueue(10))
until = time.monotonic() + 60
while not all(result.is_finished for result in results) and time.monotonic() < until:
    time.sleep(0.1)
    for result in results:
        result.refresh()
for result in results:
    print(result.status, result.attempts, result.return_value if result.status == "SUCCESSFUL" else result.errors)
later.refresh()
print(later.status, later.task.func == add.func, later.args)
try:
    add.get_result(gone[0].id)
except TaskResultDoesNotExist:
    print("gone")
default_task_backend.tasks.blocking.close()
"""


def test_a_django_project_enqueues_and_a_worker_runs(tmp_path: Path) -> None:
    for name, text in (("settings.py", SETTINGS), ("shop.py", SHOP), ("program.py", PROGRAM)):
        (tmp_path / name).write_text(text)
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("paceline")), "worker", "paceline.integrations.django_tasks:tasks"]
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        ended = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
    finally:
        worker.terminate()
        worker.wait(60)
    assert ended.returncode == 0, ended.stderr + (tmp_path / "worker.log").read_text()
    assert ended.stdout.splitlines() == [
        "SUCCESSFUL 1 2",
        "SUCCESSFUL 1 7",
        "SUCCESSFUL 1 1 Ada",
        "SUCCESSFUL 1 8",
        "FAILED 1 [TaskError(exception_class_path='builtins.ValueError', traceback='ValueError: broken')]",
        "SUCCESSFUL 1 11",
        "READY True [7]",
        "gone",
    ]
