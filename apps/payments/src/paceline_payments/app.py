"""What payments plug into the service."""

from __future__ import annotations

from paceline.server.apps import App, AppCommand

app = App(
    name="payments",
    after=("sms",),
    settings="paceline_payments.settings:PaymentSettings",
    check="paceline_payments.service.plugin:check",
    extras="paceline_payments.service.plugin:extras",
    open="paceline_payments.service.plugin:open_app",
    item_types=("PAYMENT",),
    task_queues=("payment-init-task-queue", "payment-exec-task-queue"),
    topics="paceline_payments.service.plugin:topics",
    followers="paceline_payments.service.wiring.rows:followers",
    carriers="paceline_payments.service.wiring.rows:carriers",
    routes="paceline_payments.service.http:routes",
    audited=(r"/api/v1/payments/.*/retry", r"/api/v1/feeds/[^/]+/release"),
    cancels={"payments": "DELETE /api/v1/payments/{paymentId}"},
    finders={
        "payment": "paceline_payments.service.finders:find_payments",
        "feed": "paceline_payments.service.finders:find_feeds",
    },
    pages="paceline_payments.service:console",
    page_scripts=("payments.js", "feeds.js"),
    commands={
        "demo": AppCommand(
            "Send a feed of payments that all want the same second through a downstream that takes so many",
            "paceline_payments.service.demo:demo",
        ),
        "payments": AppCommand(
            "Submit feeds of payments; show and cancel payments.", "paceline_payments.service.cli.payments:app"
        ),
    },
    verify_audit="paceline_payments.service.plugin:verify_audit",
    doctor="paceline_payments.service.doctor:examine",
    alerts="paceline_payments.service:alerts.yml",
    migrations="paceline_payments.stores.migrations:steps",
    prune="paceline_payments.service.plugin:prune",
)
