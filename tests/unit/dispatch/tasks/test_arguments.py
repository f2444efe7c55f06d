"""Arguments that need no conversion are passed on as they are; all others are checked by pydantic."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from paceline.dispatch.model import Completion, read_json
from paceline.dispatch.tasks.arguments import Arguments
from paceline.errors import InvalidInput


def task(
    names: list[str] = [],  # noqa: B006
    counts: dict[str, int] = {},  # noqa: B006
    flags: list[bool] = [],  # noqa: B006
    prices: dict[str, Decimal] = {},  # noqa: B006
) -> None: ...


ARGUMENTS = Arguments(task)


class Name(str): ...


@pytest.mark.parametrize(
    ("given", "context"),
    [
        ({"names": ["a", "b"]}, {"names": ["a", "b"]}),
        ({"names": ["ä"]}, {"names": ["ä"]}),
        ({"names": [Name("a")]}, {"names": ["a"]}),
        ({"names": ("a",)}, {"names": ["a"]}),
        ({"counts": {"a": 1}}, {"counts": {"a": 1}}),
        ({"counts": {"a": "2", "b": 3}}, {"counts": {"a": 2, "b": 3}}),
        ({"counts": {"a": True}}, {"counts": {"a": 1}}),
        ({"counts": {}}, {"counts": {}}),
        ({"flags": [True, 1]}, {"flags": [True, True]}),
        ({"prices": {"a": Decimal("1.50")}}, {"prices": {"a": "1.50"}}),
    ],
)
def test_containers_of_plain_values(given: dict[str, Any], context: dict[str, Any]) -> None:
    dumped = ARGUMENTS.dump((), given)
    assert dumped == context
    assert repr(dumped) == repr(context)


@pytest.mark.parametrize(
    "given",
    [
        {"names": [1]},
        {"counts": {1: 1}},
        {"counts": {"a": "x"}},
        {"counts": []},
    ],
)
def test_what_is_not_plain_is_checked(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ARGUMENTS.dump((), given)


def test_a_context_is_loaded_as_it_was_given() -> None:
    args, kwargs = ARGUMENTS.load({"names": ["a", "ä"], "counts": {"a": 1}, "prices": {"a": "1.50"}})
    assert (args, kwargs) == ([["a", "ä"], {"a": 1}, [], {"a": Decimal("1.50")}], {})
    for wrong in ({"names": [1]}, {"counts": {"a": None}}):
        with pytest.raises(InvalidInput):
            ARGUMENTS.load(wrong)


@pytest.mark.parametrize("text", ["", " ", "{", '{"a":1}x', "nul", '{"a":}', "[1,]"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


@pytest.mark.parametrize(("text", "value"), [('{"a":[1,"ä",null]}', {"a": [1, "ä", None]}), (" 1 ", 1), ("0.5\n", 0.5)])
def test_json_is_read_with_and_without_white_space_around(text: str, value: object) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_has_not_is_not_kept_as_null(number: float) -> None:
    def any_value(value: Any) -> Any: ...

    def numbers(value: list[float]) -> list[float]:
        return value

    def no_annotation(value: int):  # type: ignore[no-untyped-def]
        ...

    for function, result in (
        (any_value, number),
        (any_value, {"inside": [number]}),
        (numbers, [number]),
        (no_annotation, (number,)),
    ):
        kept = Arguments(function).completion(result)
        assert kept is not None
        assert kept.result_json is None
        assert "its result was not kept" in str(kept.detail)
    assert Arguments(any_value).completion({"a": 1.5}) == Completion('{"a":1.5}')


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
def test_a_call_by_position_has_as_many_arguments_as_the_function_takes(args: tuple[int, ...]) -> None:
    def positional(first: int, second: int = 2) -> None: ...

    def by_keyword(first: int = 1, *, second: int) -> None: ...

    assert Arguments(positional).dump((1,), {}) == {"first": 1}
    assert Arguments(positional).dump((1, 3), {}) == {"first": 1, "second": 3}
    assert Arguments(by_keyword).dump((1,), {"second": 3}) == {"first": 1, "second": 3}
    with pytest.raises(InvalidInput, match="positional"):
        Arguments(positional).dump(args, {})
    for count in range(3):
        with pytest.raises(InvalidInput, match="by_keyword"):
            Arguments(by_keyword).dump((1,) * count, {})
