"""What a file says reaches the bank: in the body of the call, as the bank records it and lxml reads the file."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lxml import etree

from tests.acceptance.service import Service, until
from tests.unit.apps.payments.feeds.readings import check_said
from tests.unit.apps.payments.feeds.test_pain001 import PAIN, TRANSACTION

CSV = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt,uetr,remittanceText,payeeAccount"
LINE = (
    "line-1,1.00,EUR,Alice,DE89370400440532013000,Bob,,2020-01-01T00:00:00Z,eb6305c9-1f7f-49de-aed0-16487c27b42d,"
    '"Invoice 17, part 2",0532-013000'
)
SAID = """<PmtTpInf><SvcLvl><Cd>SEPA</Cd></SvcLvl></PmtTpInf>"""
MORE = """<Purp><Cd>SALA</Cd></Purp><RmtInf><Ustrd>Für März</Ustrd><Ustrd>2/2</Ustrd>
<Strd><CdtrRefInf><Tp><CdOrPrtry><Cd>SCOR</Cd></CdOrPrtry></Tp><Ref>RF18539007547034</Ref></CdtrRefInf></Strd></RmtInf>"""


class Recorder(ThreadingHTTPServer):
    """A bank that executes every payment, and records its bodies by their keys."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: dict[str, Any] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies[self.headers["Idempotency-Key"]] = body
        answer = json.dumps({"status": "EXECUTED", "reference": "R"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None: ...


def test_everything_that_a_file_says_reaches_the_bank(tmp_path: Path) -> None:
    """Of 94 foreign payments 30 had a remittance text and 69 a UETR: none arrived. Of equal payments one was made."""
    second = TRANSACTION.replace("<RmtInf><Ustrd>March</Ustrd></RmtInf>", MORE)
    document = PAIN.replace("</PmtInf>", f"{second}{TRANSACTION}</PmtInf>").replace("<NbOfTxs>01<", "<NbOfTxs>03<")
    document = document.replace("<ReqdExctnDt>", f"{SAID}<ReqdExctnDt>")
    document = document.replace("2027-03-01", datetime.now(UTC).date().isoformat())
    with Recorder() as bank:
        threading.Thread(target=bank.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{bank.server_port}"
        with Service(tmp_path, PACELINE_PAYMENTS_DOWNSTREAM_URL=url) as service, service.client() as client:
            for body, kind in ((document, "application/xml"), (f"{CSV}\n{LINE}\n", "text/csv")):
                answer = client.post("/api/v1/feeds", content=body.encode(), headers={"Content-Type": kind})
                assert answer.status_code == 202, answer.text
            until(lambda: len(bank.bodies) == 4)
            shown = client.get("/api/v1/payments/line-1").json()
        bank.shutdown()
    line = bank.bodies.pop("line-1")
    assert line["payee"] == {"name": "Bob", "account": "0532-013000"}
    assert line["instruction"] == shown["instruction"]
    assert line["instruction"]["PmtId"] == {"UETR": "eb6305c9-1f7f-49de-aed0-16487c27b42d"}
    assert line["instruction"]["RmtInf"] == {"Ustrd": ["Invoice 17, part 2"]}
    root = etree.fromstring(document.encode())
    for key, body in bank.bodies.items():
        number = int(key.split("-")[2].removeprefix("#"))
        check_said(root, number, body["instruction"])
        assert body["instruction"]["PmtId"]["EndToEndId"] == "SALARY"
