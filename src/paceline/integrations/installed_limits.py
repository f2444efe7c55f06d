"""The limits that `install` adds to an application of any framework: limiter, rules and defaults, validated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from paceline.integrations.limit import Limit, PathRule, check_defaults, check_rules
from paceline.integrations.request_limiter import RequestLimiter
from paceline.integrations.route_patterns import Route, warn_of_unmatched

Limiting = TypeVar("Limiting", bound=RequestLimiter)


class InstalledLimits(Generic[Limiting]):
    """The limits of a whole application.

    Raises:
        ConfigurationError: a rule or a default names an unknown plan, or those that always apply together have keys
            that never share a slot of the limiter's Redis Cluster.
    """

    def __init__(
        self,
        request_limiter: Limiting,
        rules: Iterable[PathRule],
        defaults: Iterable[Limit],
        principal: Callable[[Any], Any],
    ) -> None:
        self.request_limiter = request_limiter
        self.rules = check_rules(rules)
        self.defaults = check_defaults(defaults)
        self.principal = principal
        self._routes_checked = False
        request_limiter.require_rules(self.rules)
        request_limiter.require(self.defaults)
        request_limiter.require_chain(self.defaults)

    def check_routes(self, routes: Callable[[], Iterable[Route]]) -> None:
        """Warns of rules that match no route, at the first request: some frameworks have no event for the start of an
        application."""
        if not self._routes_checked:
            self._routes_checked = True
            warn_of_unmatched(self.rules, routes)
