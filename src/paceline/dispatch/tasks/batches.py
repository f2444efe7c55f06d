"""Batches of calls with a callback, and chains of calls, as members of an item's context. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.portions import group_mark
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.task import NO_OPTIONS, CallOptions, Task, TaskCall
from paceline.durations import parse_instant
from paceline.errors import InvalidInput
from paceline.slots.model import LONGEST_ID

THEN = "paceline:then"
"""The member of a context that holds the call to queue when this one has succeeded."""
MEMBERS = "paceline:batch"
"""The member of a context that holds the calls which must end before this one runs."""
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(seconds=0.2), timedelta(minutes=1)
MAX_CALLS = 100_000


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of a batch's calls, which its callback gets.

    async def all_rendered(outcome: BatchOutcome) -> None: ...
    """

    key: str
    total: int
    succeeded: int
    failed: int
    """Dead letters."""
    cancelled: int = 0


class Members(NamedTuple):
    """The calls of a batch, in order: their ids are `{key}:{number}`."""

    key: str
    types: Sequence[tuple[str, int]]
    """Item types, each with the number of adjacent calls of it."""
    into: str
    """The parameter of the callback that gets the outcome."""

    def ids(self) -> dict[str, list[str]]:
        """By item type."""
        ids: dict[str, list[str]] = {}
        number = 0
        for item_type, count in self.types:
            ids.setdefault(item_type, []).extend(f"{self.key}:{n}" for n in range(number, number + count))
            number += count
        return ids


def outcome_of(members: Members, statuses: Mapping[Status, int]) -> BatchOutcome | None:
    """The outcome; None while some calls have not ended. An item that does not exist yet has not ended."""
    succeeded, failed, cancelled = (
        statuses.get(status, 0) for status in (Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED)
    )
    total = sum(count for _, count in members.types)
    if succeeded + failed + cancelled < total:
        return None
    return BatchOutcome(members.key, total, succeeded, failed, cancelled)


def next_look(created_at: datetime, now: datetime) -> timedelta:
    """The pause before a callback checks again: a twentieth of the time the batch has taken, within bounds."""
    return min(max((now - created_at) / 20, SHORTEST_PAUSE), LONGEST_PAUSE)


def batch_requests(
    calls: Iterable[TaskCall], then: Task[..., Any], key: str
) -> tuple[EnqueueRequest, list[EnqueueRequest]]:
    """The items of a batch: the callback and the members.

    Raises:
        InvalidInput: a call, the callback or the key is wrong, or there is no call.
    """
    calls = checked_calls(calls)
    if not 0 < len(calls) <= MAX_CALLS:
        raise InvalidInput("calls", f"must be 1 to {MAX_CALLS} calls")
    if not hasattr(then, "call_with_result"):
        raise InvalidInput("then", f"must be a task, made by @tasks.task(), not {type(then).__name__}")
    _check_room(key, max(len(":done"), len(f":{len(calls) - 1}")))
    requests, types = [], list[tuple[str, int]]()
    for number, call in enumerate(calls):
        item_type = call.task.item_type
        context = call.task.arguments.dump(call.args, call.kwargs)
        requests.append(_request(call.task, f"{key}:{number}", context, _member(call).options))
        if types and types[-1][0] == item_type:
            types[-1] = item_type, types[-1][1] + 1
        else:
            types.append((item_type, 1))
    members = Members(key, types, _outcome_parameter(then))
    head = _request(then, f"{key}:done", {MEMBERS: members._asdict()})
    return head._replace(init_workflow_id=group_mark("batch", [head, *requests])), requests


def _outcome_parameter(then: Task[..., Any]) -> str:
    """The parameter of a callback that gets the outcome. It must be the only one without a default."""
    try:
        into = then.arguments.first_parameter()
        then.arguments.dump_rest((), {})
    except InvalidInput as error:
        raise InvalidInput("then", f"must be callable with the outcome alone; {error.problem}") from None
    return into


def chain_request(calls: Sequence[TaskCall], key: str) -> EnqueueRequest:
    """The first item of a chain, whose context has the others.

    Raises:
        InvalidInput: a call is wrong, or there is none.
    """
    calls = checked_calls(calls)
    _check_room(key, len(f":{len(calls)}") if len(calls) > 1 else 0)
    following: dict[str, Any] | None = None
    for number in range(len(calls) - 1, 0, -1):
        call = calls[number]
        into = call.task.arguments.first_parameter()
        context = call.task.arguments.dump_rest(call.args, call.kwargs)
        following = _link(_member(call), f"{key}:{number + 1}", context, into, following)
    first = _member(calls[0])
    context = first.task.arguments.dump(first.args, first.kwargs)
    head = _request(first.task, key, context if following is None else context | {THEN: following}, first.options)
    return head._replace(init_workflow_id=group_mark("chain", [head]))


def checked_calls(calls: Iterable[TaskCall]) -> list[TaskCall]:
    """The calls as a list.

    Raises:
        InvalidInput: they are no list, or one of them is no call.
    """
    try:
        listed = list(calls)
    except TypeError:
        raise InvalidInput("calls", "must be a list of calls, such as [task.call(1), task.call(2)]") from None
    for number, call in enumerate(listed):
        if not isinstance(call, TaskCall):
            raise InvalidInput(
                "calls", f"number {number + 1} is of type {type(call).__name__}, and no call; make one by task.call(…)"
            )
    return listed


def _member(call: TaskCall) -> TaskCall:
    """The call, if its options can be those of one in a group. The group gives it its id."""
    for option in ("key", "connection", "unique"):
        if getattr(call.options, option) is not None:
            raise InvalidInput(option, "is the group's; a call in it can have at, priority and lane")
    return call


def _check_room(key: str, suffix: int) -> None:
    """The items of a group have ids of the key and a suffix."""
    if len(key) + suffix > LONGEST_ID:
        raise InvalidInput("key", f"has {len(key)} characters; here at most {LONGEST_ID - suffix} are allowed")


def next_request(link: Mapping[str, Any], result: Any) -> EnqueueRequest:
    """The item that a link describes, with the result of the call before it."""
    context = dict(link["context"]) | {link["into"]: result}
    if link["then"] is not None:
        context[THEN] = link["then"]
    place = {"lane": link["lane"], "priority": link["priority"]}
    return EnqueueRequest.of(link["itemType"], link["itemId"], context, **place)


def _link(
    call: TaskCall, item_id: str, context: dict[str, Any], into: str, then: dict[str, Any] | None
) -> dict[str, Any]:
    if call.options.at is not None:
        raise InvalidInput("at", "is for the first call of a chain; the others run when the one before has succeeded")
    request = _request(call.task, item_id, {}, call.options)
    return {
        "itemType": call.task.item_type,
        "itemId": item_id,
        "context": context,
        "into": into,
        "lane": request.lane,
        "priority": request.priority,
        "then": then,
    }


def _request(
    task: Task[..., Any], item_id: str, context: dict[str, Any], options: CallOptions = NO_OPTIONS
) -> EnqueueRequest:
    definition = task.definition
    return EnqueueRequest.of(
        task.item_type,
        item_id,
        context,
        None if options.at is None else parse_instant(options.at, "at"),
        lane=definition.lane if options.lane is None else options.lane,
        priority=definition.priority if options.priority is None else options.priority,
    )
