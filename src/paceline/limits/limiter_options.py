"""Checks the options of both limiters, where they are given: a wrong one would fail at the first decision, or let it
pass without a limit."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import iscoroutinefunction

from paceline.circuit_breaker import BreakerPolicy
from paceline.errors import ConfigurationError
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.ports import AdmissionObserver, AsyncLimitStore
from paceline.options import check_seconds

_CALLS = ("decide", "decide_many", "refund", "settle", "renew", "reset", "close")


def check_options(
    deadline: float | None, breaker: BreakerPolicy | None, lease: LeasePolicy | None, observer: AdmissionObserver | None
) -> None:
    """Raises `ConfigurationError` for an option of another type, or a deadline that is no time."""
    if deadline is not None:
        check_seconds("deadline", deadline)
    if breaker is not None and not isinstance(breaker, BreakerPolicy):
        raise ConfigurationError("breaker", f"{breaker!r} is no policy; give one, as in BreakerPolicy(failures=3)")
    if lease is not None and not isinstance(lease, LeasePolicy):
        raise ConfigurationError("lease", f"{lease!r} is no policy; give one, as in LeasePolicy(longest=0.5)")
    if observer is not None and (isinstance(observer, type) or not callable(getattr(observer, "decided", None))):
        raise ConfigurationError("observer", f"{observer!r} is no AdmissionObserver; give an object with its methods")


def check_store(option: str, store: object, port: type) -> None:
    """Raises `ConfigurationError` for anything but a URL or a store that implements `port`."""
    if isinstance(store, str):
        return
    if isinstance(store, type):
        raise ConfigurationError(option, f"{store!r} is a class; give a URL, such as redis://localhost, or an object")
    decide = getattr(store, "decide", None)
    if not callable(decide):
        raise ConfigurationError(
            option, f"{store!r} is no limit store; give a URL, such as redis://localhost, or a {port.__name__}"
        )
    if port is not AsyncLimitStore:
        if iscoroutinefunction(decide):
            raise ConfigurationError(option, f"{store!r} is for event loops; give it to an AsyncLimiter")
    elif not any(iscoroutinefunction(getattr(store, call, None)) for call in _CALLS):
        # Not `decide` alone: a plain function may return what can be awaited.
        raise ConfigurationError(option, f"{store!r} is for threads; give it to a Limiter, or give an AsyncLimitStore")


def check_plans(plans: object, port: type) -> None:
    """Raises `ConfigurationError` for anything but plans or a registry, which a limiter on `port` can load."""
    if isinstance(plans, Iterable):
        return
    load = getattr(plans, "load", None)
    if isinstance(plans, type) or not callable(load):
        raise ConfigurationError(
            "plans", f"{plans!r} is neither a list of plans nor a registry such as TomlPlans(path)"
        )
    if port is not AsyncLimitStore and iscoroutinefunction(load):
        raise ConfigurationError("plans", f"{plans!r} is for event loops; give it to an AsyncLimiter")
