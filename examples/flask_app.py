"""A Flask application whose views are limited.

Run it:  python examples/flask_app.py
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

from __future__ import annotations

import sys

from flask import Flask

from paceline import Limiter, Plan, TokenBucket
from paceline.integrations.flask import PathRule, client_address, header, install, rate_limit

app = Flask(__name__)
limiter = Limiter(
    plans=[
        Plan("gold", TokenBucket(capacity=5, per_second=5)),
        Plan("visitors", TokenBucket(capacity=5, per_second=5)),
    ]
)
install(app, limiter, rules=[PathRule("/public", "visitors", key=client_address())])


@app.get("/api/resource")
@rate_limit("gold", key=header("X-API-Key"))
def resource() -> dict[str, str]:
    return {"resource": "here you are"}


@app.get("/public")
def public() -> dict[str, str]:
    return {"hello": "visitor"}


if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    app.run(port=port)
