"""Envoy's rate limit service, counted: requests, descriptors by rule, requests that could not be decided."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from paceline.server.envoy.admission import Outcome, Status, is_over

MAX_RULES = 1000
"""Beyond this many rules, the rest share one label."""
OTHER = "(other)"


class EnvoyMetrics:
    """Counts the answers to Envoy into a Prometheus registry."""

    def __init__(self, registry: CollectorRegistry, *, shadow: bool = False, near_limit: float = 0.8) -> None:
        requests = Counter(
            "envoy_requests",
            "Requests of Envoy that were decided: ok, over_limit, or shadow, if all pass (PACELINE_ENVOY_SHADOW).",
            ["outcome"],
            registry=registry,
        )
        self._passed, self._denied = requests.labels("ok"), requests.labels("shadow" if shadow else "over_limit")
        self._near_limit = near_limit
        self._near = Counter(
            "envoy_near_limit",
            "Descriptors that were admitted when more than PACELINE_ENVOY_NEAR_LIMIT of their limit was spent.",
            ["rule"],
            registry=registry,
        )
        self._descriptors = Counter(
            "envoy_descriptors",
            "Descriptors, by the rule they fall under and their outcome: ok, over_limit, shadow (over a limit in "
            "shadow) or unlimited.",
            ["rule", "outcome"],
            registry=registry,
        )
        self._failures = Counter(
            "envoy_failures",
            "Requests of Envoy that could not be decided: Envoy's failure_mode_deny decides.",
            ["error"],
            registry=registry,
        )
        self._rejected = Counter(
            "envoy_config_rejections",
            "Changes of the config file that could not be used, so that the rules before them stay.",
            registry=registry,
        )
        self._rules: dict[tuple[str, str], Counter] = {}
        self._names: set[str] = set()

    def decided(self, outcome: Outcome) -> None:
        """Counts the answer to one request."""
        (self._passed if outcome.allowed else self._denied).inc()
        for status in outcome.statuses:
            if status.match is not None:
                outcome_of_rule = _outcome(status)
                self._counter(status.match.metric, outcome_of_rule).inc()
                if outcome_of_rule == "ok" and self._is_near(status):
                    self._near.labels(self._label(status.match.metric)).inc()

    def failed(self, error: str) -> None:
        """Counts a request that ended with an error."""
        self._failures.labels(error).inc()

    def rejected(self) -> None:
        """Counts a config file that could not be used."""
        self._rejected.inc()

    def _is_near(self, status: Status) -> bool:
        rule = status.rule
        return rule is not None and rule.size - status.remaining > int(rule.size * self._near_limit)

    def _label(self, rule: str) -> str:
        """The rule, unless there are too many: then what they share."""
        return rule if rule in self._names else OTHER

    def _counter(self, rule: str, outcome: str) -> Counter:
        counter = self._rules.get((rule, outcome))
        if counter is None:
            if rule not in self._names and len(self._names) >= MAX_RULES:
                return self._descriptors.labels(OTHER, outcome)
            self._names.add(rule)
            counter = self._rules[rule, outcome] = self._descriptors.labels(rule, outcome)
        return counter


def _outcome(status: Status) -> str:
    if status.match is not None and status.match.limit.unlimited and status.rule is None:
        return "unlimited"
    if status.allowed:
        return "ok"
    return "over_limit" if is_over(status) else "shadow"
