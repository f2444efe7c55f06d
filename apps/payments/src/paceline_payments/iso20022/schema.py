"""An XML schema as ISO 20022 writes them: sequences and choices of elements, texts with rules, one attribute at most.

`load` reads the schemas in this package, and refuses one that uses anything else: nothing of a schema is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree

from paceline_payments.iso20022.simple_types import SimpleType

_XS = "{http://www.w3.org/2001/XMLSchema}"


@dataclass(frozen=True, slots=True)
class Element:
    """An element that may stand somewhere."""

    name: str
    type: ElementType
    min: int = 1
    max: int | None = 1
    """None: any number."""

    @property
    def repeats(self) -> bool:
        return self.max != 1


@dataclass(frozen=True, slots=True)
class Group:
    """One element, or a choice of one of several."""

    elements: Mapping[str, Element]
    min: int
    max: int | None


@dataclass(slots=True, eq=False)
class ElementType:
    """What is inside an element: a text, or groups of elements in this order."""

    name: str
    text: SimpleType | None = None
    groups: list[Group] = field(default_factory=list)
    attributes: Mapping[str, SimpleType] = field(default_factory=dict)
    """All are required."""
    is_open: bool = False
    """Any one element may be inside, which is not read."""
    is_lax: bool = False
    """Elements may come in any order; unknown ones are skipped."""

    @property
    def is_supplementary(self) -> bool:
        """Whether it is data outside of the standard, which is never read."""
        return self.name.startswith("SupplementaryData")


def lax(name: str, members: Mapping[str, object]) -> ElementType:
    """A type for documents of which only some elements matter. `{"Ntry*": {"Amt@Ccy": None}}` is a list of entries with
    an amount that has a currency; None is a text. The text of an element that has members counts if it has none."""
    elements: dict[str, Element] = {}
    for key, inner in members.items():
        own, _, attribute = key.removesuffix("*").partition("@")
        kind = lax(own, inner if isinstance(inner, Mapping) else {})
        kind.attributes = {attribute: SimpleType()} if attribute else {}
        elements[own] = Element(own, kind, 0, None if key.endswith("*") else 1)
    groups = [Group(elements, 0, None)] if elements else []
    return ElementType(name, SimpleType(), groups, is_lax=True)


@cache
def load(version: str) -> ElementType:
    """The type of the root of a schema in this package, such as `pain.001.001.09`."""
    text = files(__package__).joinpath("schemas", f"{version}.xsd").read_text("utf-8")
    return _Schema(ElementTree.fromstring(text)).root()


class _Schema:
    def __init__(self, root: ElementTree.Element) -> None:
        self._types = {kind.get("name", ""): kind for kind in root if kind.tag != f"{_XS}element"}
        self._root = next(element for element in root if element.tag == f"{_XS}element")
        self._complex: dict[str, ElementType] = {}
        self._simple: dict[str, SimpleType] = {}

    def root(self) -> ElementType:
        return self._type(self._root.get("type", ""))

    def _type(self, name: str) -> ElementType:
        if name in self._complex:
            return self._complex[name]
        node = self._types[name]
        made = self._complex[name] = ElementType(name)
        if node.tag == f"{_XS}simpleType":
            made.text = self._simple_type(name)
            return made
        (content,) = list(node)
        if content.tag == f"{_XS}simpleContent":
            (extension,) = list(content)
            made.text = self._simple_type(extension.get("base", ""))
            made.attributes = dict(_attribute(self, attribute) for attribute in extension)
        else:
            parts = list(content)
            if [part.tag for part in parts] == [f"{_XS}any"]:
                made.is_open = True
            elif content.tag == f"{_XS}choice":
                made.groups = [self._choice(content)]
            else:
                made.groups = list(self._groups(parts))
        return made

    def _groups(self, parts: list[ElementTree.Element]) -> Iterator[Group]:
        for part in parts:
            if part.tag == f"{_XS}choice":
                yield self._choice(part)
            else:
                element = self._element(part)
                yield Group({element.name: element}, element.min, element.max)

    def _choice(self, node: ElementTree.Element) -> Group:
        elements = [self._element(part) for part in node]
        if node.attrib or any((element.min, element.max) != (1, 1) for element in elements):
            raise ValueError(f"a choice that repeats is not supported: {node.attrib}")
        return Group({element.name: element for element in elements}, 1, 1)

    def _element(self, node: ElementTree.Element) -> Element:
        if node.tag != f"{_XS}element":
            raise ValueError(f"{node.tag} is not supported")
        most = node.get("maxOccurs", "1")
        kind = self._type(node.attrib["type"])
        return Element(
            node.attrib["name"], kind, int(node.get("minOccurs", "1")), None if most == "unbounded" else int(most)
        )

    def _simple_type(self, name: str) -> SimpleType:
        if name not in self._simple:
            (restriction,) = list(self._types[name])
            facets: dict[str, list[str]] = {}
            for facet in restriction:
                facets.setdefault(facet.tag.removeprefix(_XS), []).append(facet.attrib["value"])
            self._simple[name] = _simple_type(restriction.attrib["base"], facets)
        return self._simple[name]


def _attribute(schema: _Schema, node: ElementTree.Element) -> tuple[str, SimpleType]:
    if node.get("use") != "required":
        raise ValueError("an optional attribute is not supported")
    return node.attrib["name"], schema._simple_type(node.attrib["type"])


def _simple_type(base: str, facets: dict[str, list[str]]) -> SimpleType:
    def number(name: str) -> int | None:
        return int(facets.pop(name)[0]) if name in facets else None

    made = SimpleType(
        base,
        number("minLength") or 0,
        number("maxLength"),
        tuple(re.compile(pattern, re.ASCII) for pattern in facets.pop("pattern", ())),
        frozenset(facets.pop("enumeration")) if "enumeration" in facets else None,
        number("totalDigits"),
        number("fractionDigits"),
        number("minInclusive"),
    )
    if facets:
        raise ValueError(f"a rule is not supported: {sorted(facets)}")
    return made
