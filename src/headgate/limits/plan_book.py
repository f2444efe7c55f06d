"""The plan book: the plans in force as rules, and the checks that turn a key, plan names and a cost into a chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from headgate.errors import ConfigurationError, CostExceedsCapacity, HeadgateError, InvalidInput, NotFound
from headgate.limits.model import Charge, Decision, OnError, Plan, Rule, Specs, part_name, policy
from headgate.limits.rates import is_rate, parse_rates

KEY_LENGTH = 1024
MAX_CACHED = 1000
MAX_INLINE = 1000
"""The most different rate strings that callers may use without a plan. States are kept for each of them."""


class _CachedRules(NamedTuple):
    """The rules of plans that were used together before, none twice and none with overrides."""

    rules: tuple[Rule, ...]
    max_cost: int
    """The highest cost that all of them can admit."""


Request: TypeAlias = tuple[str, str | Sequence[str]] | tuple[str, str | Sequence[str], int]
"""One of many calls: key, plans, and a cost if it is not 1."""

Rules: TypeAlias = tuple[Rule, ...]
"""The rules of a plan: one, or as many as it has limits that hold together."""


class PlanBook:
    """Plans as rules. A rule stays the same object for as long as its plan stays the same.

    A rate string may be used as a plan name: it is a plan of its own, named by the string.
    """

    __slots__ = ("_cache", "exceptions", "inline", "plans", "rules")

    def __init__(self, plans: Iterable[Plan] = ()) -> None:
        self.plans: Mapping[str, Plan] = {}
        self.rules: dict[str, Rules] = {}
        """By plan."""
        self.inline: dict[str, Rules] = {}
        """By rate string."""
        self.exceptions: dict[str, dict[str, Rules]] = {}
        """By plan and key, for plans with overrides."""
        self.replace(plans)

    def replace(self, plans: Iterable[Plan]) -> list[Rule]:
        """Replaces all plans at once. Returns the rules of the plans that were removed.

        Raises:
            ConfigurationError: one is not a `Plan`, or two have the same name.
        """
        book: dict[str, Plan] = {}
        for plan in plans:
            if not isinstance(plan, Plan):
                raise ConfigurationError("plans", f"{plan!r} is not a Plan")
            if plan.name in book:
                raise ConfigurationError("plans", f"two plans are named {plan.name!r}")
            book[plan.name] = plan
        rules, exceptions = {}, {}
        for name, plan in book.items():
            if self.plans.get(name) == plan:
                rules[name] = self.rules[name]
                if name in self.exceptions:
                    exceptions[name] = self.exceptions[name]
                continue
            on_error: OnError | None = policy(plan.on_error)
            rules[name] = _rules(name, plan.specs, plan.shadow, on_error)
            if plan.overrides:
                exceptions[name] = {
                    key: _rules(name, specs, plan.shadow, on_error) for key, specs in plan.overrides.items()
                }
        removed = [rule for name, rules_of_plan in self.rules.items() if name not in book for rule in rules_of_plan]
        for name in self.exceptions.keys() - book.keys():
            removed += [rule for rules_of_key in self.exceptions[name].values() for rule in rules_of_key]
        self.plans, self.rules, self.exceptions = book, rules, exceptions
        self._cache: dict[tuple[str, ...], _CachedRules] = {}
        return removed

    def rules_of(self, name: str, key: str) -> Rules:
        """The rules of a plan, or of a rate string, for a key.

        Raises:
            NotFound: there is no such plan.
            InvalidInput: there are too many different rate strings, or the name is no text.
        """
        if not isinstance(name, str):
            raise InvalidInput("plans", f"a plan's name is text, not {type(name).__name__}")
        rules = self.rules.get(name) or self.inline.get(name) or self._add_inline(name)
        overrides = self.exceptions.get(name)
        return rules if overrides is None else overrides.get(key, rules)

    def _add_inline(self, text: str) -> Rules:
        if not is_rate(text):
            raise NotFound("plan", text)
        try:
            plan = Plan(text, parse_rates(text, "plans"))
        except ConfigurationError as error:
            raise InvalidInput("plans", error.problem) from None
        if len(self.inline) >= MAX_INLINE:
            raise InvalidInput("plans", f"{text!r} is one rate too many; name a plan, as at most {MAX_INLINE} are kept")
        rules = self.inline[text] = _rules(text, plan.specs)
        return rules

    def chain(self, key: str, plans: str | Sequence[str], cost: int = 1) -> list[Charge]:
        """The chain of one key under one or more plans, at the same cost.

        Raises:
            InvalidInput: the key, the plans or the cost can't be used.
            NotFound: there is no such plan.
            CostExceedsCapacity: a plan can never admit the cost.
        """
        if isinstance(plans, str):
            names: tuple[str, ...] = (plans,)
        elif plans.__class__ is list or isinstance(plans, Sequence):
            names = tuple(plans)
        else:
            raise InvalidInput("plans", "name one or more plans in a list")
        # Read before the rules are, and written to below: plans replaced meanwhile come with a new cache.
        cache = self._cache
        try:
            cached = cache.get(names)
        except TypeError:
            raise InvalidInput("plans", "a plan's name is text") from None
        if cached is not None and type(cost) is int and 0 < cost <= cached.max_cost and type(key) is str:
            if not (0 < len(key) <= KEY_LENGTH and key.isascii() and key.isprintable()):
                check_key(key)
            return [Charge(key, rule, cost) for rule in cached.rules]
        if not names:
            raise InvalidInput("plans", "name at least one plan")
        check_key(key)
        check_cost(cost)
        chain = [charge for name in _check_unique(names) for charge in self._charges(key, name, cost)]
        if not any(name in self.exceptions for name in names):
            if len(cache) >= MAX_CACHED:
                cache.clear()
            cache[names] = _CachedRules(
                tuple(charge.rule for charge in chain), min(charge.rule.size for charge in chain)
            )
        return chain

    def chains(
        self, requests: Sequence[Request], return_errors: bool, *, start: int = 0
    ) -> tuple[list[list[Charge]], list[tuple[int, HeadgateError]]]:
        """The chain of each (key, plans) or (key, plans, cost), and the errors of the others by their number. Those
        before `start` are left out.

        Raises:
            InvalidInput: a request can't be used, unless `return_errors` is set. Besides, what `chain` raises.
        """
        chains: list[list[Charge]] = []
        errors: list[tuple[int, HeadgateError]] = []
        for number, request in enumerate(requests[start:], start):
            try:
                if request.__class__ not in (tuple, list) or not 2 <= len(request) <= 3:
                    raise InvalidInput("", "give (key, plans) or (key, plans, cost)")
                chains.append(self.chain(*request))
            except (InvalidInput, NotFound) as error:
                if return_errors:
                    errors.append((number, error))
                elif type(error) is InvalidInput:
                    field = f"requests[{number}].{error.field}".removesuffix(".")
                    raise InvalidInput(field, error.problem) from None
                else:
                    raise
        return chains, errors

    def links(self, links: Iterable[tuple[str, str, int]]) -> list[Charge]:
        """The chain of any (key, plan, cost), no plan twice on one key. Raises what `chain` does."""
        chain: list[Charge] = []
        by_key: dict[str, list[str]] = {}
        for key, name, cost in links:
            check_key(key)
            check_cost(cost)
            chain += self._charges(key, name, cost)
            by_key.setdefault(key, []).append(name)
        for names in by_key.values():
            _check_unique(names)
        if not chain:
            raise InvalidInput("links", "give at least one (key, plan, cost)")
        return chain

    def _charges(self, key: str, name: str, cost: int) -> Iterator[Charge]:
        for rule in self.rules_of(name, key):
            if cost <= rule.size:
                yield Charge(key, rule, cost)
            elif rule.shadow:
                # A shadow plan never denies: it gets a cost that never fits, and counts that as a denial.
                yield Charge(key, rule, rule.size + 1)
            else:
                raise CostExceedsCapacity(name, cost, rule.size)


def _rules(name: str, specs: Specs, shadow: bool = False, on_error: OnError | None = None) -> Rules:
    if len(specs) == 1:
        return (Rule(name, specs[0], shadow, on_error),)
    return tuple(Rule(part_name(name, spec), spec, shadow, on_error, owner=name) for spec in specs)


def _check_unique(names: Sequence[str]) -> Sequence[str]:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise InvalidInput("plans", f"plan {name!r} is named twice; name each plan once")
    return names


def check_key(key: object) -> None:
    """Raises `InvalidInput` for an invalid key: a missing key must be an error, never a bucket that all callers
    share."""
    if not isinstance(key, str):
        raise InvalidInput("key", f"a key is text, not {type(key).__name__}")
    if not key:
        raise InvalidInput("key", "is empty; give every caller a key of its own, or name a shared one explicitly")
    if len(key) > KEY_LENGTH:
        raise InvalidInput("key", f"is {len(key)} characters long; use at most {KEY_LENGTH}")
    if "\0" in key:
        raise InvalidInput("key", "holds a NUL character, which not every store can keep")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidInput("key", "holds half of a surrogate pair; use text that can be encoded") from None


def check_cost(cost: object) -> None:
    """Raises `InvalidInput` unless the cost is a whole number of at least 1."""
    if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
        raise InvalidInput("cost", f"{cost!r} is not a whole number of at least 1")


def with_errors(
    decisions: Sequence[Decision], errors: Iterable[tuple[int, HeadgateError]]
) -> list[Decision | HeadgateError]:
    """The results of a batch: the decisions in order, and each error at its number."""
    results: list[Decision | HeadgateError] = [*decisions]
    for number, error in errors:
        results.insert(number, error)
    return results
