"""The limit of a descriptor, and the key of its count. Pure.

A descriptor is a list of (key, value) that Envoy sends. Rules form a tree per domain, one level per entry. At each
level the exact `key_value` is tried first, then wildcards in the order of the file, then the key alone. A rule applies
if it is as deep as the descriptor is long.

A rule is decided by the plan of its name: `domain.key_value.key`, the path of what matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from paceline.limits.model import NAME_LENGTH, FixedWindow, Plan
from paceline.limits.plan_book import KEY_LENGTH

ANY = "*"
_DIGEST = 32
_READABLE = NAME_LENGTH - _DIGEST - 1

Entries: TypeAlias = Sequence[tuple[str, str]]


class Unit(StrEnum):
    """The unit of a limit. Months and years have a fixed length, as in envoyproxy/ratelimit."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"

    @property
    def window(self) -> timedelta:
        return _WINDOWS[self]


_WINDOWS = {
    Unit.SECOND: timedelta(seconds=1),
    Unit.MINUTE: timedelta(minutes=1),
    Unit.HOUR: timedelta(hours=1),
    Unit.DAY: timedelta(days=1),
    Unit.WEEK: timedelta(weeks=1),
    Unit.MONTH: timedelta(days=30),
    Unit.YEAR: timedelta(days=365),
}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limit of a rule: `requests` per `unit`, or `unlimited`.

    `requests` of 0 refuse every call. A limit in `shadow` decides and is counted, and never refuses. Limits in `quota`
    refuse a call only if all of them that the call falls under are exhausted.
    """

    requests: int = 0
    unit: Unit | None = None
    unlimited: bool = False
    shadow: bool = False
    quota: bool = False
    name: str = ""
    replaces: tuple[str, ...] = ()
    detailed_metric: bool = False
    counter: str | None = None
    """The name under which it counts, if limits share their counts."""

    @property
    def blocks(self) -> bool:
        """Whether there is never any room."""
        return self.unit is not None and self.requests == 0

    def plan(self, name: str) -> Plan | None:
        """The plan that counts this limit; `None` if there is nothing to count."""
        if self.unit is None or self.blocks:
            return None
        return Plan(
            name, FixedWindow(self.requests, self.unit.window), shadow=self.shadow or self.quota, counter=self.counter
        )


PLAN_ALONE = RateLimit()
"""The limit of a rule that is in no file: its plan alone decides."""


@dataclass(slots=True)
class RuleNode:
    """One level of a domain's rules."""

    path: str
    limit: RateLimit | None = None
    value_to_metric: bool = False
    shared: str | None = None
    """The wildcard whose matches share one count."""
    children: dict[str, RuleNode] = field(default_factory=dict)
    """By `key_value`, or `key` alone."""
    wildcards: list[tuple[list[str], RuleNode]] = field(default_factory=list)
    """Patterns, split at their stars, in the order of the file."""

    def add(self, name: str, child: RuleNode) -> None:
        """Adds the rule for `key_value` or `key`, which must be new."""
        self.children[name] = child
        if ANY in name:
            self.wildcards.append((name.split(ANY), child))

    def nodes(self) -> Iterable[RuleNode]:
        """This node and all below it."""
        yield self
        for child in self.children.values():
            yield from child.nodes()


class Match(NamedTuple):
    """The rule of a descriptor."""

    plan: str
    """The name of the plan that decides."""
    key: str
    """The key of its count. Keys of a domain share a hash tag, so that a Redis Cluster can decide all of them at
    once."""
    limit: RateLimit
    metric: str
    """The metric label of the decision."""


class DescriptorRules:
    """The rules of all domains, and the plans that stand for a rule by their name alone.

        rules.match("edge", [("remote_address", "192.0.2.7")])

    `plan_names` are those of plans from elsewhere. In a domain without a file, a plan named `edge.remote_address` is a
    rule. In a domain with one, it takes the place of the limit of the rule that has this path.
    """

    def __init__(self, domains: Iterable[RuleNode] = (), plan_names: Iterable[str] = ()) -> None:
        self._domains = {node.path: node for node in domains}
        self._names = frozenset(plan_names)
        self._levels = {name[:end] for name in self._names for end in _level_ends(name)}

    def plans(self) -> dict[str, Plan]:
        """The plans of all rules, by name."""
        nodes = [node for domain in self._domains.values() for node in domain.nodes()]
        named = [(plan_name(node.path), node.limit) for node in nodes if node.limit is not None]
        return {name: plan for name, limit in named if (plan := limit.plan(name)) is not None}

    def match(self, domain: str, entries: Entries) -> Match | None:
        """The rule a descriptor falls under; `None` if there is none, so that nothing limits it."""
        root = self._domains.get(domain)
        return self._match_names(domain, entries) if root is None else self._match_rules(root, domain, entries)

    def match_all(self, domain: str, descriptors: Sequence[Entries]) -> list[Match | None]:
        """The rule of each descriptor. A rule whose name another one of them replaces does not apply."""
        return without_replaced([self.match(domain, entries) for entries in descriptors])

    def _match_rules(self, root: RuleNode, domain: str, entries: Entries) -> Match | None:
        node = root
        counted = list(entries)
        metric = domain
        for index, (key, value) in enumerate(entries):
            exact = f"{key}_{value}"
            child, shown = node.children.get(exact), exact
            if child is None:
                child, shown = _wildcard_child(node, exact), exact
                if child is not None and child.shared is not None:
                    shown = child.shared
                    counted[index] = (key, shown.removeprefix(f"{key}_"))
                elif child is not None and not child.value_to_metric:
                    shown = child.path.removeprefix(f"{node.path}.")
            if child is None:
                child = node.children.get(key)
                if child is None:
                    return None
                shown = exact if child.value_to_metric else key
            node, metric = child, f"{metric}.{shown}"
        name = plan_name(node.path)
        limit = node.limit or (PLAN_ALONE if name in self._names else None)
        if limit is None or node is root:
            return None
        if limit.detailed_metric:
            metric = ".".join([domain, *(f"{key}_{value}" if value else key for key, value in counted)])
        return Match(name, counted_key(domain, counted), limit, metric)

    def _match_names(self, domain: str, entries: Entries) -> Match | None:
        path = domain
        for key, value in entries:
            exact = f"{path}.{key}_{value}"
            path = exact if exact in self._levels else f"{path}.{key}"
        if path not in self._names or not entries:
            return None
        return Match(path, counted_key(domain, entries), PLAN_ALONE, path)


def without_replaced(matches: Sequence[Match | None]) -> list[Match | None]:
    """The matches of one request, without those whose limit another one replaces by name."""
    replaced = {name for match in matches if match is not None for name in match.limit.replaces}
    if not replaced:
        return list(matches)
    return [None if match is None or match.limit.name in replaced else match for match in matches]


def override_match(domain: str, entries: Entries, requests: int, unit: Unit) -> Match:
    """The match of a descriptor that brings a limit of its own, whatever the rules say. Limits of the same unit share
    their count, as in envoyproxy/ratelimit: a caller whose limit changes is not admitted anew."""
    path = ".".join([domain, *(key for key, _ in entries)])
    name = plan_name(f"{path}@{requests}/{unit}")
    return Match(
        name, counted_key(domain, entries), RateLimit(requests, unit, counter=plan_name(f"{path}@{unit}")), path
    )


def counted_key(domain: str, entries: Entries) -> str:
    """The key of a descriptor's count. Two descriptors of the same keys never share one, whatever their values hold."""
    text = ",".join(f"{key}={_escaped(value)}" for key, value in entries)
    key = f"{{{domain}}}:{text}"
    if len(key) > KEY_LENGTH or "\0" in key:
        key = f"{{{domain[:NAME_LENGTH]}}}:sha256={sha256(text.encode()).hexdigest()}".replace("\0", "")
    return key


def plan_name(path: str) -> str:
    """The name of the plan of a rule: its path, shortened with a digest if a plan can't be named so."""
    if len(path) <= NAME_LENGTH and path.isprintable():
        return path
    readable = "".join(character if character.isprintable() else "?" for character in path[:_READABLE])
    return f"{readable}:{sha256(path.encode()).hexdigest()[:_DIGEST]}"


def matches_wildcard(parts: Sequence[str], text: str) -> bool:
    """Whether `text` fits a pattern that was split at its stars. Takes one pass, whatever the text."""
    first, *middle, last = parts
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    start, end = len(first), len(text) - len(last)
    for part in middle:
        place = text.find(part, start, end)
        if place < 0:
            return False
        start = place + len(part)
    return True


def _wildcard_child(node: RuleNode, exact: str) -> RuleNode | None:
    for parts, child in node.wildcards:
        if matches_wildcard(parts, exact):
            return child
    return None


def _level_ends(name: str) -> Iterable[int]:
    """Where a level of a name may end: at every dot, because values have dots, too."""
    yield from (place for place, character in enumerate(name) if character == ".")
    yield len(name)


def _escaped(value: str) -> str:
    if "," in value or "\\" in value:
        return value.replace("\\", "\\\\").replace(",", "\\,")
    return value
