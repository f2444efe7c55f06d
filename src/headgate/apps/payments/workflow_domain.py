"""Payments on Temporal: the same domain, with workflows."""

from __future__ import annotations

from dataclasses import replace

from headgate.apps.payments.execution import PaymentSteps
from headgate.apps.payments.intake import PaymentIntake
from headgate.apps.payments.workflows import ExecActivities, InitActivities, PaymentExecWorkflow, PaymentInitWorkflow
from headgate.dispatch.registry import Domain


def on_temporal(domain: Domain, steps: PaymentSteps, intake: PaymentIntake) -> Domain:
    """The domain with what Temporal's init and exec workers run."""
    return replace(
        domain,
        workflow=PaymentExecWorkflow,
        activities=ExecActivities(steps).all,
        init_workflows=(PaymentInitWorkflow,),
        init_activities=InitActivities(intake).all,
    )
