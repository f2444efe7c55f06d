"""The queue in Django's admin: a Django project, seen through Django's test client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.peer_tasks import STORES, url_of

SETTINGS = """
import os
USE_TZ = True
SECRET_KEY = "test"
ROOT_URLCONF = "shop"
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.sessions", "paceline.integrations.django_admin",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PACELINE_QUEUE = os.environ["QUEUE"]
"""
SHOP = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""
PROGRAM = """
import asyncio, os, django
django.setup()
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from paceline import BlockingDispatchQueue, OutcomeUnknown, Tasks
from paceline.testing import eventually

tasks = Tasks(os.environ["QUEUE"])

@tasks.task(retries=0)
def fail(number: int) -> None:
    raise ValueError(f"no <b>{number}</b>")

@tasks.task(on_unknown="hold")
def pay(number: int) -> None:
    raise OutcomeUnknown("connection reset")

async def work() -> None:
    async with tasks:
        await fail.enqueue_many([fail.options(key=f"dead-{n}").call(n) for n in range(3)])
        await pay.options(key="inv/1").enqueue(1)
        async with tasks.running():
            queue = await tasks.queue()
            async def ended() -> bool:
                pays, fails = await queue.stats("PAY"), await queue.stats("FAIL")
                return pays.depth.get("UNKNOWN") == 1 and fails.depth.get("DEAD_LETTER") == 3
            await eventually(ended, within=60)

asyncio.run(work())
call_command("migrate", verbosity=0)
call_command("makemigrations", "--check", verbosity=0)
User.objects.create_superuser("root", password="x")
reader = User.objects.create_user("reader", password="x", is_staff=True)
reader.user_permissions.add(Permission.objects.get(codename="view_queueitem"))
User.objects.create_user("other", password="x", is_staff=True)

ITEMS = "/admin/paceline/queueitem/"
queue = BlockingDispatchQueue(os.environ["QUEUE"])

def of(name):
    client = Client(enforce_csrf_checks=False)
    assert client.login(username=name, password="x")
    return client

def status(item_type, item_id):
    return queue.show(item_type, item_id).item.status.value

root, clerk, nobody = of("root"), of("reader"), of("other")
print("index", "Queue" in root.get("/admin/").content.decode())
listed = root.get(ITEMS).content.decode()
print("types", "FAIL" in listed and "PAY" in listed, "nobody", nobody.get(ITEMS).status_code)
dead = root.get(ITEMS + "?type=FAIL").content.decode()
print("dead", dead.count('name="id"'), "no &lt;b&gt;1&lt;/b&gt;" in dead, "<b>1</b>" in dead)
seen = clerk.get(ITEMS + "?type=FAIL").content.decode()
print("reader", "dead-1" in seen, seen.count('name="id"'))
refused = clerk.post(ITEMS + "?type=FAIL", {"action": "requeue", "id": ["dead-1"]})
print("refused", refused.status_code, status("FAIL", "dead-1"))
done = root.post(ITEMS + "?type=FAIL", {"action": "requeue", "id": ["dead-1"]}, follow=True)
print("requeued", "1 item was requeued." in done.content.decode(), status("FAIL", "dead-1"))
done = root.post(ITEMS + "?type=FAIL", {"action": "discard", "id": ["dead-0", "dead-2"]}, follow=True)
print("discarded", "2 items were discarded." in done.content.decode(), status("FAIL", "dead-2"))
again = root.post(ITEMS + "?type=FAIL", {"action": "requeue", "id": ["dead-2"]}, follow=True)
print("again", "CANCELLED" in again.content.decode(), status("FAIL", "dead-2"))
none = root.post(ITEMS + "?type=FAIL", {"action": "requeue"}, follow=True).content.decode()
print("none", "Mark at least one item." in none)
item = root.get(ITEMS + "PAY/inv/1/").content.decode()
print("item", "connection reset" in item, "Traceback (most recent call last)" in item, "Resolve" in item)
body = {"action": "resolve", "outcome": "done", "reason": "on the statement"}
print("clerk", clerk.post(ITEMS + "PAY/inv/1/", body).status_code, status("PAY", "inv/1"))
root.post(ITEMS + "PAY/inv/1/", body)
print("resolved", status("PAY", "inv/1"), queue.show("PAY", "inv/1").audit[-1].detail)
print("missing", root.get(ITEMS + "PAY/none/").status_code, root.get(ITEMS + "?type=NONE").status_code)
print("log", sorted(entry.get_change_message() for entry in LogEntry.objects.all()))
queue.close()
"""


@pytest.mark.parametrize("store", STORES)
def test_operators_see_and_move_items_by_their_permissions(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name, text in (("settings.py", SETTINGS), ("shop.py", SHOP), ("program.py", PROGRAM)):
        (tmp_path / name).write_text(text)
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": str(tmp_path),
        "QUEUE": url_of(store, request, tmp_path),
    }
    program = [sys.executable, "program.py"]
    ended = subprocess.run(
        program, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "index True",
        "types True nobody 403",
        "dead 3 True False",
        "reader True 0",
        "refused 403 DEAD_LETTER",
        "requeued True READY",
        "discarded True CANCELLED",
        "again True CANCELLED",
        "none True",
        "item True True True",
        "clerk 403 UNKNOWN",
        "resolved COMPLETED done: on the statement",
        "missing 404 404",
        "log ['discard FAIL/dead-0', 'discard FAIL/dead-2', 'requeue FAIL/dead-1', 'resolve PAY/inv/1']",
    ]


def test_without_a_queue_the_error_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("SECRET_KEY = 'test'")
    program = "from paceline.integrations.django_admin.queue import open_queue; open_queue()"
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, text=True, capture_output=True, timeout=60, check=False
    )
    assert "PACELINE_QUEUE is not set" in ended.stderr
