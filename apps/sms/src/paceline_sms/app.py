"""What SMS plug into the service."""

from __future__ import annotations

from paceline.server.apps import App, AppCommand

ITEM_TYPES = ("SMS", "SMS_HIGH")

app = App(
    name="sms",
    settings="paceline_sms.settings:SmsSettings",
    check="paceline_sms.service.wiring.sms_providers:check_providers",
    extras="paceline_sms.service.plugin:extras",
    open="paceline_sms.service.plugin:open_app",
    roles={"sender": "paceline_sms.service.wiring.notifications:run_sender"},
    item_types=ITEM_TYPES,
    followers="paceline_sms.service.wiring.followers:followers",
    topics="paceline_sms.service.plugin:topics",
    routes="paceline_sms.service.http:routes",
    scopes={
        r"/api/(send|config).*|/api/optouts/.*": "send",
        r"/admin/sms/dead-letters/(redrive|drop)": "operate",
    },
    logged_path="paceline_sms.recipients:logged_path",
    finders={"message": "paceline_sms.service.plugin:find_messages"},
    pages="paceline_sms.service:console",
    page_scripts=("notifications.js", "messages.js"),
    commands={
        "sms": AppCommand(
            "Send messages and follow them; look after quotas, opt-outs and dead letters.",
            "paceline_sms.service.cli.sms:app",
        ),
    },
    doctor="paceline_sms.service.doctor:examine",
    alerts="paceline_sms.service:alerts.yml",
    migrations="paceline_sms.stores.migrations:steps",
    prune="paceline_sms.service.plugin:prune",
)
