"""What payments plug into the service."""

from __future__ import annotations

from paceline.server.apps import App, AppCommand

app = App(
    name="payments",
    settings="paceline_payments.settings:PaymentSettings",
    routes="paceline_payments.service.http:routes",
    commands={
        "demo": AppCommand(
            "Send a feed of payments that all want the same second through a downstream that takes so many",
            "paceline_payments.service.demo:demo",
        ),
        "payments": AppCommand(
            "Submit feeds of payments; show and cancel payments.", "paceline_payments.service.cli.payments:app"
        ),
    },
)
