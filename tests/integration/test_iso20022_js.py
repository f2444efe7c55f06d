"""Payment files that the npm package iso20022.js makes: each accepted payment says what lxml reads in its file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from lxml import etree

from tests.unit.apps.payments.feeds.readings import check_carried, read

MODULES = Path(__file__).parents[2] / ".venv" / "javascript" / "node_modules"
PROGRAM = """
import {ISO20022} from 'iso20022.js'
const iso = new ISO20022({initiatingParty: {
  name: 'Acme Corporation', id: 'ACMECORP', account: {accountNumber: '123456789012'},
  agent: {bic: 'CHASUS33', bankAddress: {country: 'US'}},
}})
const creditor = {
  name: 'Jürgen & Co', account: {iban: 'DE89370400440532013000'}, agent: {bic: 'DEUTDEFF'},
  address: {streetName: 'Main St', buildingNumber: '1', townName: 'Bonn', postalCode: '53111', country: 'DE'},
}
const payment = {
  type: 'swift', direction: 'credit', amount: 1000, currency: 'USD', creditor,
  remittanceInformation: 'Invoice 17, part 2',
}
const made = iso.createSWIFTCreditPaymentInitiation([payment, payment])
process.stdout.write(made.toString())
"""


def made() -> str:
    if not (MODULES / "iso20022.js").is_dir():
        reason = "iso20022.js is not installed: make lint installs it, with npm"
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", PROGRAM],
        cwd=MODULES.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_of_another_language_are_read_as_lxml_reads_them() -> None:
    document = made()
    payments, rejects = read(document)
    assert (len(payments), rejects) == (2, [])
    assert {(one.payment.amount, one.payment.currency) for one in payments} == {("10.00", "USD")}
    assert {one.payment.payer.account for one in payments} == {"123456789012"}
    assert len({one.payment.payment_id for one in payments}) == 2, "equal payments are two"
    check_carried(etree.fromstring(document.encode()), payments)
