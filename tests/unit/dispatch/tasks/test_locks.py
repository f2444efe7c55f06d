"""The lock of a task: a name in which arguments are filled in."""

from __future__ import annotations

import pytest

from paceline import Tasks
from paceline.dispatch.tasks.locks import Lock
from paceline.errors import ConfigurationError, InvalidInput


def charge(invoice: int, amount: int = 5) -> None: ...


def test_arguments_are_filled_in_and_defaults_where_none_is_given() -> None:
    lock = Lock.of("invoice:{invoice}/{amount}", charge)
    assert lock is not None
    assert lock.name({"invoice": 7}) == "invoice:7/5"
    assert lock.name({"invoice": 7, "amount": 6}) == "invoice:7/6"
    assert Lock.of(None, charge) is None


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("invoice:{number}", "{number} is no argument of charge; it has invoice, amount"),
        ("invoice:{}", "is no argument"),
        ("invoice:{invoice", "expected '}'"),
        ("", "must be a text of 1 to 255 printable characters"),
    ],
)
def test_a_wrong_lock_is_refused_where_the_task_is_made(template: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Tasks("sqlite://").task(lock=template)(charge)
    assert refusal.value.field == "lock"
    assert problem in refusal.value.problem


def test_a_call_without_the_argument_is_refused() -> None:
    lock = Lock.of("invoice:{invoice}", charge)
    assert lock is not None
    with pytest.raises(InvalidInput, match="can't be filled in: 'invoice'"):
        lock.name({})
    with pytest.raises(InvalidInput, match="lock"):
        lock.name({"invoice": "x" * 300})


async def test_calls_have_the_lock_of_their_task_or_their_own() -> None:
    tasks, ran = Tasks("sqlite://"), list[int]()

    @tasks.task(lock="invoice:{invoice}")
    async def pay(invoice: int) -> None:
        ran.append(invoice)

    @tasks.task
    async def remind(invoice: int) -> None:
        ran.append(invoice)

    async with tasks.in_memory(run=False) as queue:
        paid = await pay.enqueue(7)
        (other,) = await pay.enqueue_many([pay.options(lock="bank").call(8)])
        reminded = await remind.options(lock="invoice:7", key="r").enqueue(7)
        free = await remind.enqueue(7)
        locks = [(await queue.queue.find(one.item_type, one.item_id)).lock for one in (paid, other, reminded, free)]
        assert locks == ["invoice:7", "bank", "invoice:7", None]
        for _ in range(20):
            await pay.enqueue(7)
        await queue.run()
    assert sorted(ran) == [7] * 23 + [8]
