"""The documents of customer credit transfers that are read: versions of pain.001, and national forms of them."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import InvalidInput
from paceline_payments.iso20022.reader import Root
from paceline_payments.iso20022.schema import load

ISO = "urn:iso:std:iso:20022:tech:xsd:"
VERSIONS = ("pain.001.001.03", "pain.001.001.09", "pain.001.001.11")
NATIONAL: Mapping[str, tuple[str, str]] = {
    "http://www.six-interbank-clearing.com/de/pain.001.001.03.ch.02.xsd": ("Document", "pain.001.001.03"),
    f"{ISO}pain.001.002.03": ("Document", "pain.001.001.03"),
    f"{ISO}pain.001.003.03": ("Document", "pain.001.001.03"),
    "urn:CBI:xsd:CBIPaymentRequest.00.04.00": ("CBIPaymentRequest", "pain.001.001.03"),
    "urn:CBI:xsd:CBIPaymentRequest.00.04.01": ("CBIPaymentRequest", "pain.001.001.09"),
}
"""Namespaces of Swiss, German and Italian documents → the outermost element, and the version of ISO 20022 that they
restrict."""


def root_of(namespace: str, name: str) -> Root:
    """The schema of a document by the namespace and name of its outermost element.

    Raises:
        InvalidInput: It is no supported version of pain.001.
    """
    version = namespace.removeprefix(ISO)
    if name == "Document" and namespace.startswith(ISO) and version in VERSIONS:
        return Root(namespace, name, load(version))
    expected, national = NATIONAL.get(namespace, ("", ""))
    if name == expected:
        kind = load(national)
        return Root(namespace, name, kind if name == "Document" else kind.groups[0].elements["CstmrCdtTrfInitn"].type)
    shown = f"{name} of {namespace}" if namespace else name
    raise InvalidInput("document", f"must be a Document of {', '.join(VERSIONS)}, not {shown[:200]}")
