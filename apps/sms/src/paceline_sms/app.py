"""What SMS plug into the service."""

from __future__ import annotations

from paceline.server.apps import App, AppCommand

app = App(
    name="sms",
    settings="paceline_sms.settings:SmsSettings",
    routes="paceline_sms.service.http:routes",
    commands={
        "sms": AppCommand(
            "Send messages and follow them; look after quotas, opt-outs and dead letters.",
            "paceline_sms.service.cli.sms:app",
        ),
    },
)
