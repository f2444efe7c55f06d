"""The plan book: the plans in force as rules, and the checks that turn a key, plan names and a cost into a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

from paceline.errors import ConfigurationError, CostExceedsCapacity, InvalidInput, NotFound, PacelineError
from paceline.limits.model import Charge, Concurrency, Decision, OnError, Plan, Rule, Specs, part_name, policy
from paceline.limits.rates import SCOPE, is_rate, parse_rates
from paceline.limits.reservations import Link, check_actual

KEY_LENGTH = 1024
MAX_CACHED = 1000
MAX_INLINE = 1000
"""The most different rate strings that are kept as plans of their own. Beyond it, the least recently used are evicted:
callers choose them, also over HTTP, and must not shut out each other."""
EVICTED_AT_ONCE = MAX_INLINE // 10
MOST_CHARGES = 500
"""The most charges that a store decides in one call: a batch of more is cut, and each piece has its own deadline."""


class _CachedRules(NamedTuple):
    """The rules of plans that were used together before, none twice and none with overrides."""

    rules: tuple[Rule, ...]
    max_cost: int
    """The highest cost that all of them can admit."""
    rates: tuple[str, ...]
    """Those of the names that are rate strings, which may be evicted."""


Request: TypeAlias = tuple[str, str | Sequence[str]] | tuple[str, str | Sequence[str], int]
"""One of many calls: key, plans, and a cost if it is not 1."""

Rules: TypeAlias = tuple[Rule, ...]
"""The rules of a plan: one, or as many as it has limits that hold together."""


class PlanBook:
    """Plans as rules. A rule stays the same object for as long as its plan stays the same.

    A rate string may be used as a plan name: it is a plan of its own, named by the string. `on_evict` is called with
    the rules of rate strings that are evicted.
    """

    __slots__ = (
        "_cache",
        "_last_used",
        "_on_evict",
        "_uses",
        "concurrency_plans",
        "exceptions",
        "inline",
        "pinned",
        "plans",
        "rules",
    )

    def __init__(self, plans: Iterable[Plan] = (), on_evict: Callable[[list[Rule]], None] | None = None) -> None:
        self.plans: Mapping[str, Plan] = {}
        self.rules: dict[str, Rules] = {}
        """By plan."""
        self.inline: dict[str, Rules] = {}
        """By rate string."""
        self.pinned: set[str] = set()
        """The rate strings that are not evicted: they are configured, not chosen by callers. They are as many as the
        configuration has."""
        self._last_used: dict[str, int] = {}
        """By rate string, in the order of uses. An order of its own, because only single operations of a `dict` are
        safe under threads."""
        self._uses = count()
        self._on_evict = on_evict
        self.exceptions: dict[str, dict[str, Rules]] = {}
        """By plan and key, for plans with overrides."""
        self.concurrency_plans: frozenset[str] = frozenset()
        """The plans that have a concurrency limit, for all keys or by an override."""
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
            counter = plan.counter or name
            rules[name] = _rules(name, counter, plan.specs, plan.shadow, on_error)
            if plan.overrides:
                exceptions[name] = {
                    key: _rules(name, counter, specs, plan.shadow, on_error) for key, specs in plan.overrides.items()
                }
        removed = [rule for name, rules_of_plan in self.rules.items() if name not in book for rule in rules_of_plan]
        for name in self.exceptions.keys() - book.keys():
            removed += [rule for rules_of_key in self.exceptions[name].values() for rule in rules_of_key]
        self.plans, self.rules, self.exceptions = book, rules, exceptions
        self.concurrency_plans = frozenset(name for name, plan in book.items() if _has_places(plan))
        self._cache: dict[tuple[str, ...], _CachedRules] = {}
        return removed

    def rules_of(self, name: str, key: str) -> Rules:
        """The rules of a plan, or of a rate string, for a key.

        Raises:
            NotFound: there is no such plan.
            InvalidInput: the name is no text, or no rate.
        """
        if not isinstance(name, str):
            raise InvalidInput("plans", f"a plan's name is text, not {type(name).__name__}")
        rules = self.rules.get(name)
        if rules is None:
            rules = self.inline.get(name) or self._add_inline(name)
            self._last_used[name] = next(self._uses)
        overrides = self.exceptions.get(name)
        return rules if overrides is None else overrides.get(key, rules)

    def pin(self, rate: str) -> None:
        """Keeps a rate string for good. Raises what `rules_of` does."""
        self.rules_of(rate, "")
        self.pinned.add(rate)

    def concurrency_limits(self, key: str, names: Iterable[str]) -> list[str]:
        """The names of plans that have a concurrency limit for this key. An override may be of another kind than its
        plan."""
        return [name for name in names if name in self.concurrency_plans and self._has_places(name, key)]

    def _has_places(self, name: str, key: str) -> bool:
        overrides = self.exceptions.get(name, {})
        return any(isinstance(rule.spec, Concurrency) for rule in overrides.get(key, self.rules.get(name, ())))

    def _add_inline(self, text: str) -> Rules:
        if not is_rate(text):
            raise NotFound("plan", text)
        try:
            plan = Plan(text, parse_rates(text.partition(SCOPE)[0], "plans"))
        except ConfigurationError as error:
            raise InvalidInput("plans", error.problem) from None
        if len(self.inline) - len(self.pinned) >= MAX_INLINE:
            self._evict()
        rules = self.inline[text] = _rules(text, text, plan.specs)
        return rules

    def _evict(self) -> None:
        last_used = self._last_used
        rates = sorted(
            (rate for rate in list(self.inline) if rate not in self.pinned), key=lambda r: last_used.get(r, -1)
        )
        evicted = [rule for rate in rates[:EVICTED_AT_ONCE] for rule in self.inline.pop(rate, ())]
        self._last_used = {rate: last_used[rate] for rate in list(self.inline) if rate in last_used}
        self._cache = {}
        if self._on_evict is not None:
            self._on_evict(evicted)

    def chain(self, key: str, plans: str | Sequence[str], cost: int = 1) -> list[Charge]:
        """The chain of one key under one or more plans, at the same cost.

        Raises:
            InvalidInput: the key, the plans or the cost can't be used.
            NotFound: there is no such plan.
            CostExceedsCapacity: a plan can never admit the cost.
        """
        names = plan_names(plans)
        # Read before the rules are, and written to below: plans replaced meanwhile come with a new cache.
        cache = self._cache
        try:
            cached = cache.get(names)
        except TypeError:
            raise InvalidInput("plans", "a plan's name is text") from None
        if cached is not None and type(cost) is int and 0 < cost <= cached.max_cost and type(key) is str:
            if not (0 < len(key) <= KEY_LENGTH and key.isascii() and key.isprintable()):
                check_key(key)
            for rate in cached.rates:
                self._last_used[rate] = next(self._uses)
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
                tuple(charge.rule for charge in chain),
                min(charge.rule.size for charge in chain),
                tuple(name for name in names if name not in self.rules),
            )
        return chain

    def chains(
        self, requests: Sequence[Request], return_errors: bool, *, start: int = 0
    ) -> tuple[list[list[Charge]], list[tuple[int, PacelineError]]]:
        """The chain of each (key, plans) or (key, plans, cost), and the errors of the others by their number. Those
        before `start` are left out.

        Raises:
            InvalidInput: a request can't be used, unless `return_errors` is set. Besides, what `chain` raises.
        """
        chains: list[list[Charge]] = []
        errors: list[tuple[int, PacelineError]] = []
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

    def links(self, links: Iterable[Link]) -> list[Charge]:
        """The chain of any (key, plan, cost), no plan twice on one key. Raises what `chain` does."""
        chain: list[Charge] = []
        by_key: dict[str, list[str]] = {}
        for number, link in enumerate(links):
            if not isinstance(link, tuple | list) or len(link) != 3:
                raise InvalidInput(f"links[{number}]", "give (key, plan, cost)")
            key, name, cost = link
            check_key(key)
            check_cost(cost)
            chain += self._charges(key, name, cost)
            by_key.setdefault(key, []).append(name)
        for names in by_key.values():
            _check_unique(names)
        if not chain:
            raise InvalidInput("links", "give at least one (key, plan, cost)")
        return chain

    def settlement(self, links: Iterable[Link]) -> tuple[list[Charge], list[int]]:
        """The chain of any (key, plan, actual cost), and the actual cost of each of its charges; it may be 0, or more
        than the plan's capacity. Raises what `chain` does."""
        chain: list[Charge] = []
        actuals: list[int] = []
        for key, name, actual in links:
            check_key(key)
            rules = self.rules_of(name, key)
            chain += [Charge(key, rule) for rule in rules]
            actuals += [check_actual(actual)] * len(rules)
        if not chain:
            raise InvalidInput("plans", "name at least one plan")
        return chain, actuals

    def _charges(self, key: str, name: str, cost: int) -> Iterator[Charge]:
        for rule in self.rules_of(name, key):
            if cost <= rule.size:
                yield Charge(key, rule, cost)
            elif rule.shadow or self._is_only_the_keys_limit(name, key, cost):
                # A cost that never fits. A shadow plan counts it as a denial. An override denies it: the caller chose
                # the key, and every other key may have this cost, so it is no mistake of the application.
                yield Charge(key, rule, rule.size + 1)
            else:
                raise CostExceedsCapacity(name, cost, rule.size)

    def _is_only_the_keys_limit(self, name: str, key: str, cost: int) -> bool:
        """Whether a cost that is above the limit of a key fits the plan itself."""
        return key in self.exceptions.get(name, ()) and all(cost <= rule.size for rule in self.rules[name])


def _rules(name: str, counter: str, specs: Specs, shadow: bool = False, on_error: OnError | None = None) -> Rules:
    if len(specs) == 1:
        return (Rule(counter, specs[0], shadow, on_error, owner=name),)
    return tuple(Rule(part_name(counter, spec), spec, shadow, on_error, owner=name) for spec in specs)


def _has_places(plan: Plan) -> bool:
    return any(isinstance(spec, Concurrency) for specs in (plan.specs, *plan.overrides.values()) for spec in specs)


def plan_names(plans: object) -> tuple[str, ...]:
    """The names of one plan or several. Raises `InvalidInput` if it is neither a name nor a list."""
    if isinstance(plans, str):
        return (plans,)
    if plans.__class__ is list or isinstance(plans, Sequence):
        return tuple(plans)
    raise InvalidInput("plans", "name one or more plans in a list")


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


def pieces(chains: Sequence[list[Charge]]) -> Iterator[list[list[Charge]]]:
    """Chains in their order, in pieces of up to 500 charges, or of one chain. A deadline is for a call to the store:
    a batch of any size in one call could exceed it, and then every decision of the batch would be a failure."""
    piece: list[list[Charge]] = []
    size = 0
    for chain in chains:
        if piece and size + len(chain) > MOST_CHARGES:
            yield piece
            piece, size = [], 0
        piece.append(chain)
        size += len(chain)
    if piece:
        yield piece


def with_errors(
    decisions: Sequence[Decision], errors: Iterable[tuple[int, PacelineError]]
) -> list[Decision | PacelineError]:
    """The results of a batch: the decisions in order, and each error at its number."""
    results: list[Decision | PacelineError] = [*decisions]
    for number, error in errors:
        results.insert(number, error)
    return results
