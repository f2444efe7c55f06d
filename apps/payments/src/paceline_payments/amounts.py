"""Amounts of XML documents."""

from __future__ import annotations

from paceline_payments.currencies import MINOR_UNITS


def plain_amount(text: str, currency: str) -> str:
    """A decimal number of XML Schema as an amount is written: +010.00000 is 10.00. What is more precise than the
    currency, or no number, stays so."""
    whole, _, fraction = text.strip().removeprefix("+").partition(".")
    fraction = fraction.rstrip("0").ljust(MINOR_UNITS[currency], "0")
    return f"{whole.lstrip('0') or '0'}{'.' if fraction else ''}{fraction}"
