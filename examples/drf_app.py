"""A project of Django REST framework in one file, limited by throttle classes.

Run it:  python examples/drf_app.py
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

# mypy: allow-subclassing-any
from __future__ import annotations

import sys
from typing import Any

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.urls import path as route

from paceline import Limiter, Plan, TokenBucket

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="an example has no secrets",
    PACELINE_LIMITER=Limiter(
        plans=[Plan(name, TokenBucket(capacity=5, per_second=5)) for name in ("gold", "visitors")]
    ),
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
    },
)
django.setup()

from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402, reads the settings when it is imported

from paceline.integrations.drf import RateThrottle, client_address, header, throttle  # noqa: E402


class VisitorThrottle(RateThrottle):
    plans, key = "visitors", client_address()


class Resource(APIView):
    throttle_classes = (throttle("gold", key=header("X-API-Key")),)

    def get(self, request: Any) -> Any:
        return Response("here you are")


class Public(Resource):
    throttle_classes = (VisitorThrottle,)


urlpatterns = [route("api/resource", Resource.as_view()), route("public", Public.as_view())]

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    execute_from_command_line([sys.argv[0], "runserver", "--noreload", f"127.0.0.1:{port}"])
