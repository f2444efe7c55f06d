"""Our reader allows what the published schema allows, by lxml's judgement, and nothing else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from paceline.errors import InvalidInput
from paceline_payments.iso20022.reader import Problem, RecordReader, Root, Values
from paceline_payments.iso20022.schema import lax, load
from tests.effort import examples
from tests.unit.apps.payments.iso20022.documents import ISO, VERSIONS, change, document, published


def problem_of(version: str, raw: bytes, size: int = 997) -> str | None:
    """Why our reader does not allow a document; None if it does."""
    problems: list[Problem] = []

    def record(_path: tuple[str, ...], _values: Values, problem: Problem | None) -> None:
        if problem is not None:
            problems.append(problem)

    root = Root(ISO + version, "Document", load(version))
    path = ("CstmrCdtTrfInitn", "PmtInf", "CdtTrfTxInf")
    reader = RecordReader(lambda _namespace, _name: root, {path: True}, record)
    try:
        for first in range(0, len(raw), size):
            reader.feed(raw[first : first + size])
        reader.finish()
    except InvalidInput as error:
        return str(error)
    return str(problems[0]) if problems else None


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32), changes=st.integers(0, 2))
@settings(max_examples=examples(400), deadline=None)
def test_a_document_is_allowed_exactly_if_the_published_schema_allows_it(version: str, seed: int, changes: int) -> None:
    random = Random(seed)
    tree = document(version, random, random.choice([0.05, 0.3, 0.6]))
    for _ in range(changes):
        change(tree, random)
    raw = etree.tostring(tree, encoding="utf-8", xml_declaration=True)
    schema = published(version)
    is_valid = schema.validate(etree.fromstring(raw))
    problem = problem_of(version, raw)
    assert (problem is None) == is_valid, (problem, schema.error_log, raw.decode()[:3000])


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_that_the_generator_makes_are_valid(version: str) -> None:
    for seed in range(20):
        tree = document(version, Random(seed))
        assert published(version).validate(etree.fromstring(etree.tostring(tree))), published(version).error_log


def test_a_lax_type_is_made_of_names() -> None:
    kind = lax("Ntry", {"Amt@Ccy": None, "TxDtls*": {"Refs": {"UETR": None}}})
    elements = kind.groups[0].elements
    assert elements["TxDtls"].repeats
    assert not elements["Amt"].repeats
    assert list(elements["Amt"].type.attributes) == ["Ccy"]
    assert list(elements["TxDtls"].type.groups[0].elements) == ["Refs"]
