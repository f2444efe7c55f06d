"""Batches of calls with a callback, and chains of calls, as members of an item's context. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.dispatch.model import BatchCounts, EnqueueRequest
from paceline.dispatch.portions import HELD_UNTIL, group_mark, member_mark
from paceline.dispatch.tasks.task import NO_OPTIONS, CallOptions, Task, TaskCall
from paceline.durations import parse_instant
from paceline.errors import InvalidInput
from paceline.slots.model import LONGEST_ID

THEN = "paceline:then"
"""The member of a context that holds the call to queue when this one has succeeded."""
MEMBERS = "paceline:batch"
"""The member of a context that holds the calls which must end before this one runs."""
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
    """The batch of a callback. Its calls have the ids `{key}:{number}`."""

    key: str
    into: str
    """The parameter of the callback that gets the outcome."""

    def outcome(self, counts: BatchCounts) -> BatchOutcome:
        return BatchOutcome(self.key, counts.total, counts.succeeded, counts.failed, counts.cancelled)


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
    mark = member_mark(then.item_type, f"{key}:done")
    requests = []
    for number, call in enumerate(calls):
        context = call.task.arguments.dump(call.args, call.kwargs)
        request = _request(call.task, f"{key}:{number}", context, _member(call).options)
        requests.append(request._replace(init_workflow_id=mark))
    members = Members(key, _outcome_parameter(then))
    head = _request(then, f"{key}:done", {MEMBERS: members._asdict()}, CallOptions(at=HELD_UNTIL))
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
    place = {"lane": link["lane"], "priority": link["priority"], "lock": link["lock"]}
    return EnqueueRequest.of(link["itemType"], link["itemId"], context, **place)


def _link(
    call: TaskCall, item_id: str, context: dict[str, Any], into: str, then: dict[str, Any] | None
) -> dict[str, Any]:
    if call.options.at is not None:
        raise InvalidInput("at", "is for the first call of a chain; the others run when the one before has succeeded")
    request = _request(call.task, item_id, {}, call.options, lock_of=context)
    return {
        "itemType": call.task.item_type,
        "itemId": item_id,
        "context": context,
        "into": into,
        "lane": request.lane,
        "priority": request.priority,
        "lock": request.lock,
        "then": then,
    }


def _request(
    task: Task[..., Any],
    item_id: str,
    context: dict[str, Any],
    options: CallOptions = NO_OPTIONS,
    *,
    lock_of: dict[str, Any] | None = None,
) -> EnqueueRequest:
    definition = task.definition
    return EnqueueRequest.of(
        task.item_type,
        item_id,
        context,
        None if options.at is None else parse_instant(options.at, "at"),
        lane=definition.lane if options.lane is None else options.lane,
        priority=definition.priority if options.priority is None else options.priority,
        lock=definition.lock_of(options.lock, context if lock_of is None else lock_of),
    )
