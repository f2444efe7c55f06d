"""A limit of a web application: plans, key, cost and options, each a value or a function of the request."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from fnmatch import translate
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypedDict, TypeVar, Unpack

from paceline.errors import ConfigurationError
from paceline.limits.keys import Key, KeyFunction, RequestSource, key_from
from paceline.limits.model import Decision
from paceline.limits.rates import SCOPE, is_rate, parse_rates, scoped, without_scope

log = logging.getLogger("paceline.integrations")

T = TypeVar("T")
Maybe: TypeAlias = T | Awaitable[T]
"""A value, or an awaitable of it, in an async application."""

PlanNames: TypeAlias = str | Iterable[str]
Plans: TypeAlias = PlanNames | Callable[[Any], Maybe[PlanNames | None]]
"""Plans by name, or a function of the framework's request that chooses them; `None` if the request is not limited."""
Cost: TypeAlias = int | Callable[[Any], int]
Exempt: TypeAlias = Callable[[Any], Maybe[bool]]
OnDenied: TypeAlias = Callable[[Any, Decision], Any]
"""Makes the response of a denial from the framework's request and the decision; `None` for the usual response."""
OfResponse: TypeAlias = Callable[..., T]
"""A function of the `Response`; or, if it takes two arguments, of the framework's request and the `Response`."""


class Response:
    """A response for `charge_when` and `cost_of_response`, the same in every framework.

    `native` is the framework's own response, if it has one. `completed` is false if the body was cut off: the client
    disconnected, or the application failed after the response had begun.
    """

    __slots__ = ("completed", "headers", "native", "request", "status_code")

    def __init__(
        self,
        request: Any,
        status_code: int,
        headers: Iterable[tuple[str, str]] = (),
        *,
        native: Any = None,
        completed: bool = True,
    ) -> None:
        self.request = request
        self.status_code = status_code
        self.headers = {name.lower(): value for name, value in headers}
        """By name, in lower case."""
        self.native = native
        self.completed = completed


class LimitOptions(TypedDict, total=False):
    """The options of every `rate_limit`.

    - `cost`: a whole number of at least 1, or a function of the request.
    - `exempt`: a function of the request; where it returns true, the request is not limited, and counted as exempt.
    - `on_denied`: a function of the request and the decision that returns the response of a denial.
    - `charge_when`: a function of the response; where it returns false, the cost is refunded.
    - `cost_of_response`: a function of the response that returns the actual cost; `cost` is reserved meanwhile.
    - `block`: with false, denied requests pass; the request has the decision.
    - `legacy_headers`: adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` to the response.
    - `scope`: a rate such as `10/minute` counts for its own route; with a scope, for all limits of the same rate, key
      and scope. A plan with a name counts under its name wherever it is used.
    - `shared`: with true, a rate counts for all limits of the same rate and key.
    - `override_defaults`: a route's own limits replace the application's defaults; with false they hold besides. On a
      default itself: with false, no route replaces it.
    """

    cost: Cost
    exempt: Exempt | None
    on_denied: OnDenied | None
    charge_when: OfResponse[bool] | None
    cost_of_response: OfResponse[int] | None
    block: bool
    legacy_headers: bool
    scope: str | None
    shared: bool
    override_defaults: bool


class Limit:
    """Plans, their key, and the options of `LimitOptions`."""

    __slots__ = (
        "_of_scope",
        "block",
        "by_response",
        "charge_when",
        "choose_plans",
        "cost",
        "cost_of_response",
        "exempt",
        "is_plain",
        "is_single",
        "key",
        "legacy_headers",
        "on_denied",
        "override_defaults",
        "plans",
        "scope",
        "shared",
    )

    any_by_response: ClassVar[bool] = False
    """Whether some limit of this process is charged by response; if none is, responses need not be observed."""

    def __init__(
        self,
        plans: Plans,
        *,
        key: Key | KeyFunction,
        cost: Cost = 1,
        exempt: Exempt | None = None,
        on_denied: OnDenied | None = None,
        charge_when: OfResponse[bool] | None = None,
        cost_of_response: OfResponse[int] | None = None,
        block: bool = True,
        legacy_headers: bool = False,
        scope: str | None = None,
        shared: bool = False,
        override_defaults: bool = True,
    ) -> None:
        self.choose_plans = plans if callable(plans) else None
        self.plans = () if callable(plans) else plan_names(plans)
        if not self.plans and self.choose_plans is None:
            raise ConfigurationError("plans", "name at least one plan")
        for name in self.plans:
            if is_rate(name):
                parse_rates(name.partition(SCOPE)[0], "plans")
        self.shared = _flag("shared", shared)
        self.scope = None if scope is None else self._check_scope(scope)
        if self.scope is not None:
            self.plans = _in_scope(self.plans, self.scope)
        self._of_scope: dict[str, Limit] = {}
        self.override_defaults = _flag("override_defaults", override_defaults)
        self.key = key_from(key)
        if not callable(cost) and (not isinstance(cost, int) or isinstance(cost, bool) or cost < 1):
            raise ConfigurationError("cost", f"{cost!r} is not a whole number of at least 1, nor a function")
        self.cost = cost
        self.exempt = check_function("exempt", exempt)
        self.on_denied = check_function("on_denied", on_denied)
        self.charge_when = _with_request(check_function("charge_when", charge_when))
        self.cost_of_response = _with_request(check_function("cost_of_response", cost_of_response))
        self.by_response = charge_when is not None or cost_of_response is not None
        """Whether its cost is reserved, and settled when the response is known."""
        Limit.any_by_response |= self.by_response
        self.block = _flag("block", block)
        self.legacy_headers = _flag("legacy_headers", legacy_headers)
        self.is_plain = (
            len(self.plans) == 1
            and not callable(cost)
            and exempt is None
            and on_denied is None
            and not self.by_response
            and block
            and not legacy_headers
        )
        """Whether it is one plan at one cost, the same for every request."""
        self.is_single = self.is_plain and cost == 1

    def _check_scope(self, scope: object) -> str:
        if not isinstance(scope, str) or not scope:
            raise ConfigurationError("scope", f"{scope!r} is no text; give a name such as search")
        if self.shared:
            raise ConfigurationError("scope", "a limit is shared by all, or within a scope: leave one of them out")
        if self.plans and not any(map(is_rate, self.plans)):
            raise ConfigurationError("scope", f"plan {self.plans[0]!r} counts under its name; scopes are for rates")
        return scope

    def of_route(self, scope: str) -> Limit:
        """This limit with counts of its own for a route, unless it is shared or has a scope."""
        if self.shared or self.scope is not None or not (self.choose_plans or any(map(is_rate, self.plans))):
            return self
        limit = self._of_scope.get(scope)
        if limit is None:
            limit = copy(self)
            limit.scope, limit.plans = scope, _in_scope(self.plans, scope)
            limit = self._of_scope.setdefault(scope, limit)
        return limit

    def cost_of(self, request: RequestSource) -> int:
        """The request's cost, before its response is known."""
        if isinstance(self.cost, int):
            return self.cost
        cost = self.cost(request.native)
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
            raise cost_error(f"the cost function gave {cost!r}, which is not a whole number of at least 1")
        return cost

    async def plans_of(self, request: RequestSource) -> tuple[str, ...]:
        """The plans of the request; none if it is not limited."""
        if self.choose_plans is None:
            return self.plans
        chosen = await resolved(self.choose_plans(request.native))
        names = () if chosen is None else plan_names(chosen)
        return names if self.scope is None else _in_scope(names, self.scope)

    @property
    def label(self) -> str:
        """Its name in metrics: its first plan, or the function that chooses them."""
        return without_scope(self.plans[0]) if self.plans else _name_of(self.choose_plans)

    @property
    def shown(self) -> str:
        """Its plans as they are written."""
        return ", ".join(map(without_scope, self.plans)) if self.plans else f"<{self.label}>"

    def actual_cost(self, response: Response, reserved: int) -> int:
        """The response's actual cost, for a limit that is charged by response."""
        if self.charge_when is not None and not self.charge_when(response):
            return 0
        if self.cost_of_response is None:
            return reserved
        cost = self.cost_of_response(response)
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 0:
            raise cost_error(f"cost_of_response gave {cost!r}, which is not a whole number of at least 0")
        return cost

    def __repr__(self) -> str:
        return f"Limit({self.shown!r}, key={self.key!r})"


def _in_scope(plans: tuple[str, ...], scope: str) -> tuple[str, ...]:
    return tuple(scoped(name, scope) if is_rate(name) and SCOPE not in name else name for name in plans)


NO_ROUTE = "(no route)"
"""The scope of requests that match no route."""


def scope_of(view: Callable[..., Any] | None) -> str:
    """The scope of a view's limits: its module and name, which are the same in every process of an application. A view
    that is served under several routes is one."""
    if view is None:
        return NO_ROUTE
    if isinstance(view, partial):
        owner = getattr(view.func, "__self__", None)
        if owner is None:
            return scope_of(view.func)
        # A method that Django's `method_decorator` decorates for each request: the class may have inherited it.
        name = f"{type(owner).__qualname__}.{_name_of(view.func)}"
        return f"{type(owner).__module__}.{name}"
    named = view if hasattr(view, "__qualname__") else type(view)
    return f"{named.__module__}.{named.__qualname__}"


def check_defaults(defaults: Iterable[Limit]) -> tuple[Limit, ...]:
    """Raises `ConfigurationError` for a value that is no list of `Limit`s."""
    if not isinstance(defaults, Iterable):
        raise ConfigurationError("defaults", f"{defaults!r} is no list; write [Limit(...)]")
    limits = tuple(defaults)
    for limit in limits:
        if not isinstance(limit, Limit):
            raise ConfigurationError("defaults", f"{limit!r} is no Limit; write Limit('100/minute', key=...)")
    return limits


def check_rules(rules: Iterable[PathRule]) -> tuple[PathRule, ...]:
    """Raises `ConfigurationError` for a value that is no list of `PathRule`s."""
    if not isinstance(rules, Iterable):
        raise ConfigurationError("rules", f"{rules!r} is no list; write [PathRule(...)]")
    checked = tuple(rules)
    for rule in checked:
        if not isinstance(rule, PathRule):
            raise ConfigurationError(
                "rules", f"{rule!r} is no PathRule; write PathRule('/api/*', '100/minute', key=...)"
            )
    return checked


def cost_error(problem: str) -> ConfigurationError:
    """The error of a wrong cost, which is the application's mistake and not the client's. It is logged."""
    log.error("a limit's cost is wrong: %s", problem)
    return ConfigurationError("cost", problem)


async def resolved(value: Maybe[T]) -> T:
    """A value that may have to be awaited."""
    return await value if inspect.isawaitable(value) else value


def plans_error(problem: str) -> ConfigurationError:
    """The error of wrong plans, which is the application's mistake. It is logged."""
    log.error("a limit's plans are wrong: %s", problem)
    return ConfigurationError("plans", problem)


def plan_names(plans: PlanNames) -> tuple[str, ...]:
    """Plans by name.

    Raises:
        ConfigurationError: one is no text.
    """
    names = (plans,) if isinstance(plans, str) or not isinstance(plans, Iterable) else tuple(plans)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(
                "plans", f"{name!r} is no plan's name; write for example 10/minute, or the name of one"
            )
    return names


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(name, f"{value!r} is neither True nor False")
    return value


F = TypeVar("F", bound=Callable[..., Any])


def check_function(name: str, value: F | None) -> F | None:
    """Raises `ConfigurationError` for a value that is no function."""
    if value is not None and not callable(value):
        raise ConfigurationError(name, f"{value!r} is no function")
    return value


def _with_request(function: Callable[..., T] | None) -> Callable[[Response], T] | None:
    """A function of the response alone."""
    if function is None:
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable written in C
        return function
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len([one for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty]) < 2:
        return function
    return lambda response: function(response.request, response)


def _method_names(methods: Iterable[str]) -> frozenset[str]:
    if isinstance(methods, str | bytes) or not isinstance(methods, Iterable):
        raise ConfigurationError("methods", f"give a list, as in [{methods!r}]")
    names = tuple(methods)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError("methods", f"{names!r} names no method; leave it out for all of them")
    return frozenset(name.upper() for name in names)


_WILDCARD = re.compile(r"[*?[]")
_SLASHES = re.compile(r"(?P<set>\[\^?\]?[^\]]*\])|/+")
"""Runs of slashes in a regular expression, besides sets of characters."""


class PathRule:
    """A `Limit` for the requests whose path matches a pattern (`/api/*`; `*` also spans slashes) and, if given, whose
    method is one of `methods`, in any case; GET includes HEAD. A rate counts for all requests of the rule together.

    The path is relative to the application: without the prefix under which it is mounted or served. A run of slashes
    counts as one, and a trailing slash or newline makes no difference, so a request for `/login/`, `//login` or
    `/login%0A` can't bypass a rule for `/login`.
    """

    __slots__ = ("_matches", "limit", "methods", "pattern")

    def __init__(
        self,
        pattern: str,
        plans: Plans,
        *,
        key: Key | KeyFunction,
        methods: Iterable[str] | None = None,
        **options: Unpack[LimitOptions],
    ) -> None:
        if not isinstance(pattern, str) or not pattern.startswith(("/", "*")):
            raise ConfigurationError("pattern", f"{pattern!r} matches no path; begin it with / or *")
        self.pattern = pattern
        self.methods = None if methods is None else _method_names(methods)
        named = "" if self.methods is None else f"{','.join(sorted(self.methods))} "
        self.limit = Limit(plans, key=key, **options).of_route(f"{named}{pattern}")
        if self.methods is not None and "GET" in self.methods:
            self.methods |= {"HEAD"}
        # `translate` ends in `\Z`, in newer Pythons `\z`. Routes that end in `$`, as Starlette's do, also serve a path
        # with a newline after its end.
        regex = _SLASHES.sub(lambda match: match["set"] or "/+", translate(pattern.rstrip("/"))[:-2])
        self._matches = re.compile(regex + r"/*\n?\Z").match

    def applies(self, method: str, path: str) -> bool:
        # Some servers hand a method on as it came, and some frameworks serve `post` as POST.
        return self._matches(path) is not None and (self.methods is None or method.upper() in self.methods)

    def is_covered_by(self, other: PathRule) -> bool:
        """Whether `other` certainly applies to every request that this rule applies to."""
        if other.methods is not None and (self.methods is None or not self.methods <= other.methods):
            return False
        if other.pattern in (self.pattern, "*"):
            return True
        own, beginning = (re.sub("//+", "/", pattern).rstrip("/") for pattern in (self.pattern, other.pattern))
        if beginning.endswith("*") and not _WILDCARD.search(beginning[:-1]) and own.startswith(beginning[:-1]):
            return True
        return not _WILDCARD.search(self.pattern) and other._matches(self.pattern) is not None

    def __repr__(self) -> str:
        methods = "" if self.methods is None else f", methods={sorted(self.methods)}"
        return f"PathRule({self.pattern!r}, {self.limit.shown!r}{methods})"
