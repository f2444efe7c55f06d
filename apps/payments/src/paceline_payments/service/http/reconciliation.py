"""`/admin/payments/reconcile`: payments compared with the downstream's statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.durations import parse_instant
from paceline.server.http.body import media_type
from paceline.server.http.problem import documented, unsupported
from paceline.server.http.raw_routes import add_raw_route, send_json
from paceline.slots.model import checked_id
from paceline_payments.model import PaymentFilter
from paceline_payments.reconciliation.comparing import reconcile
from paceline_payments.reconciliation.model import Difference, Kind, Return, StatementSummary
from paceline_payments.reconciliation.statement import COLUMNS, StatementFormat, statement_lines
from paceline_payments.service.http.parts import payments_of
from paceline_payments.service.http.payments import FEED_ID, FROM, TO, body_blocks
from paceline_payments.service.shapes.reconciliation import ReconciliationShown

FORMATS = {
    b"text/csv": StatementFormat.CSV,
    b"application/xml": StatementFormat.CAMT053,
    b"text/xml": StatementFormat.CAMT053,
}
MAX_LISTED = 10_000
"""The maximum of listed differences per kind; all are counted."""
CSV = {
    "type": "string",
    "pattern": f"^{','.join(COLUMNS)}(\\r?\\n|$)",
    "description": "One payment per line; status is EXECUTED, REJECTED, PENDING, REVERSED or RETURNED.",
    "example": ",".join(COLUMNS),
}
XML = {"type": "string", "description": "ISO 20022 camt.053 (statement) or camt.054 (notification)."}


def install(routes: list[BaseRoute]) -> None:
    """Adds the route of this module."""
    add_raw_route(
        routes,
        "/admin/payments/reconcile",
        compare_statement,
        methods=["POST"],
        tags=["payments"],
        summary="Compare payments with the bank's statement",
        response_model=ReconciliationShown,
        responses=documented(400, 404, 415),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"text/csv": {"schema": CSV}, "application/xml": {"schema": XML}},
            },
            "parameters": [FEED_ID, FROM, TO],
        },
    )


async def compare_statement(scope: Scope, receive: Receive, send: Send) -> None:
    """Planned = executed = bank, per feed, day and currency, with every difference. Payments that came back become
    RETURNED; nothing else is changed.

    The statement is CSV with the columns paymentId, amount, currency, status, reference, executedAt, or camt.053 or
    camt.054. There a payment is known by its UETR, InstrId, EndToEndId or TxId, if that is its id; by the bank's
    reference; or by MsgId, PmtInfId and InstrId of its file. `feed`, `from` and `to` choose the payments; the default
    is all. 404 if there is no such feed.
    """
    kind = FORMATS.get(media_type(scope))
    if kind is None:
        raise unsupported("text/csv or application/xml")
    request = Request(scope)
    given, payments = request.query_params, payments_of(scope)
    selection = PaymentFilter(
        None,
        checked_id(given["feed"], "feed") if "feed" in given else None,
        parse_instant(given["from"], "from") if "from" in given else None,
        parse_instant(given["to"], "to") if "to" in given else None,
    )
    if selection.feed_id is not None:
        await payments.feeds.show(selection.feed_id)
    lists: dict[Kind, list[Difference]] = defaultdict(list)

    def keep(difference: Difference) -> None:
        if len(lists[difference.kind]) < MAX_LISTED:
            lists[difference.kind].append(difference)

    summary, returns = StatementSummary(), list[Return]()

    async def record(some: Sequence[Return]) -> None:
        await payments.operations.record_returns(some)
        returns.extend(some[: MAX_LISTED - len(returns)])

    lines = statement_lines(body_blocks(receive), kind, summary)
    result = await reconcile(payments.statements, lines, keep, selection, summary=summary, record_returns=record)
    await send_json(send, ReconciliationShown.of_result(result, lists, summary, returns).dump_json())
