"""Shared by the clients under which a `Downstream` lies: the options of a request, and the settlement by its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from paceline.downstream.verdicts import MAX_BODY, Answer
from paceline.errors import ConfigurationError, PacelineError, RateLimitExceeded
from paceline.limits.model import Decision
from paceline.options import check_wait

log = logging.getLogger(__name__)

Costs: TypeAlias = Mapping[str, int]
Settle: TypeAlias = Callable[[Answer], Costs | None]
"""Reads what a call has really cost from its answer, when the body has been read or was cut off (`is_whole`). None
leaves it as reserved."""
CostsOf: TypeAlias = Costs | Callable[[Any], Costs | None]
"""The costs of a request, or a function of the library's own request."""
KeyOf: TypeAlias = str | Callable[[Any], str | None]
"""The key of a request, or a function of the library's own request; None lets a request through without any limit."""

DEFAULT_TIMEOUT = 30.0
DEFAULT_KEY = "host"


class ClientCalls:
    """The calls of one client to a `Downstream` or a `BlockingDownstream`.

    Raises:
        ConfigurationError: an option can't be used.
    """

    def __init__(
        self, downstream: Any, settle: Settle | None, costs: CostsOf | None, key: KeyOf, timeout: float | None
    ) -> None:
        for name, option in (("settle", settle), ("costs", costs), ("key", key)):
            is_usable = callable(option) or (name != "settle" and isinstance(option, str | Mapping))
            if option is not None and not is_usable:
                raise ConfigurationError(name, f"{option!r} can't be used; give a function")
        if timeout is not None:
            check_wait("timeout", timeout)
        if isinstance(costs, Mapping):
            downstream.call(costs)  # raises InvalidInput for a limit that there is not
        self._downstream = downstream
        self._settle = settle
        self._costs = costs
        self._key = key
        self._timeout = timeout

    @property
    def reads_bodies(self) -> bool:
        """Whether the answer's body is wanted."""
        return self._settle is not None

    @property
    def call_timeout(self) -> float:
        """The longest that one call may take, in seconds."""
        return float(self._downstream.call_timeout)

    def call_of(self, request: Any) -> Any:
        """The call of a request; None if it is not limited."""
        key = self._key(request) if callable(self._key) else self._key
        if key is None:
            return None
        costs = self._costs(request) if callable(self._costs) else self._costs
        return self._downstream.call(costs, key=key, timeout=self._timeout)

    def settle(self, call: Any, answer: Answer) -> None:
        """Settles a call by its answer. An error of the function is logged: the answer is the caller's all the same."""
        if self._settle is None:
            return
        try:
            costs = self._settle(answer)
            if costs is not None:
                call.settle(**costs)
        except PacelineError as error:
            log.warning("settle returned what can't be charged; the call stays charged as reserved: %s", error)
        except Exception:
            log.exception("settle failed; the call stays charged as reserved")


@contextmanager
def sending(call: Any, refused: Callable[[Decision], Exception]) -> Iterator[None]:
    """The block sends the request of a blocking call, when its turn has come. `refused` makes the error of one that
    could not leave in time."""
    try:
        call.enter()
    except RateLimitExceeded as error:
        raise refused(error.decision) from None
    try:
        call.confirm()
        yield
        call.left()
    except BaseException as error:
        call.leave(error)
        raise


class Body:
    """The beginning of a body, for `settle`: at most `MAX_BODY` bytes of it."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Keeps a part, if it is wanted and there is room."""
        if self._wanted and self._size <= MAX_BODY:
            self._parts.append(part)
            self._size += len(part)

    def content(self) -> bytes:
        """What was kept."""
        return b"".join(self._parts)
