"""A Django project in one file, limited by middleware and by decorators, under WSGI or ASGI.

Run it:  python examples/django_app.py         (Django's own server, WSGI)
         python examples/django_app.py 8000 asgi    (uvicorn)
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

from __future__ import annotations

import sys

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.http import HttpRequest, JsonResponse
from django.urls import path as route

from paceline import Limiter, Plan, TokenBucket
from paceline.integrations.django import PathRule, client_address, header, rate_limit

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="an example has no secrets",
    MIDDLEWARE=["paceline.integrations.django.RateLimitMiddleware"],
    PACELINE_LIMITER=Limiter(
        plans=[Plan(name, TokenBucket(capacity=5, per_second=5)) for name in ("gold", "visitors")]
    ),
    PACELINE_RULES=[PathRule("/public", "visitors", key=client_address())],
)
django.setup()


@rate_limit("gold", key=header("X-API-Key"))
def resource(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"resource": "here you are"})


@rate_limit("gold", key=header("X-API-Key"))
async def report(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"report": "done"})


def public(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"hello": "visitor"})


urlpatterns = [route("api/resource", resource), route("api/report", report), route("public", public)]
application = get_asgi_application()

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    if sys.argv[2:] == ["asgi"]:
        import uvicorn

        uvicorn.run(application, port=port, log_level="warning", lifespan="off", proxy_headers=False)
    else:
        execute_from_command_line([sys.argv[0], "runserver", "--noreload", f"127.0.0.1:{port}"])
