"""Oracle can't run here, so what would be sent to it is compiled and held against peer bug 24."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.dialects import oracle

from paceline.durations import from_ms
from paceline.slots.listing import Cancellation, Cursor, SlotFilter
from paceline.slots.model import AssignedSlot, WindowPolicy
from paceline.slots.stores import cancelling, policies, pruning, slot_records, sql, templates, window_rows
from paceline.sql.schema import database_now


class Recorder:
    """Stands where a connection would and compiles what it is given; every query comes back empty."""

    def __init__(self) -> None:
        self.dialect = oracle.dialect()
        self.statements: list[str] = []
        self.info: dict[str, Any] = {}

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        if isinstance(parameters, dict):
            statement = statement.params(parameters)
        compiled = statement.compile(dialect=self.dialect, compile_kwargs={"render_postcompile": True})
        self.statements.append(str(compiled))
        return Nothing()


class Nothing:
    rowcount = 0

    def scalar(self) -> None:
        return None

    def first(self) -> None:
        return None

    def scalars(self) -> Nothing:
        return self

    def all(self) -> list[Any]:
        return []

    def __iter__(self) -> Any:
        return iter(())


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_no_statement_limits_rows_it_locks(recorder: Recorder) -> None:
    """`FETCH FIRST` or ROWNUM with `FOR UPDATE` is ORA-02014."""
    connection: Any = recorder
    policies.lock_active(connection, "c")
    sql._find_all(connection, [f"e{n}" for n in range(2500)])
    sql._booked(connection, 10, (5, "e"), 100)
    cancelling.cancel(connection, "e")
    policies.history(connection, "c")
    pruning.names_to_prune(connection, 10)
    policies.lock_all(connection, ["b", "a"])
    pruning.prune_joint(connection, {}, {"a": 10}, 10, (5, "e"), 100)
    pruning.remove_finished(connection, {}, [AssignedSlot("e", "c", 1, 0, 0, 0, True)])
    templates.find_template(connection, "merchant-7")
    templates.remove_idle(connection, 0, 10, 100)
    window_rows.SqlWindowReader(connection, "c").windows_from(0, 64)
    window_rows.SqlWindowReader(connection, "c").run_before(0)
    window_rows.recount(connection, "c", WindowPolicy(1, "PT4S"), 0)
    window_rows.rebuild_runs(connection, "c", WindowPolicy(1, "PT4S"), 0)
    locking = [text for text in recorder.statements if "FOR UPDATE" in text]
    assert locking
    assert not any("FETCH FIRST" in text or "ROWNUM" in text for text in locking)
    assert not any("LIMIT" in text for text in recorder.statements)


def test_an_idle_config_is_locked_without_waiting() -> None:
    text = str(templates.lock_unless_locked("c").compile(dialect=oracle.dialect()))
    assert text.endswith("FOR UPDATE OF paceline_slot_config.name SKIP LOCKED")


def test_a_config_s_slots_are_those_that_name_it_first_or_later(recorder: Recorder) -> None:
    window_rows.recount(recorder, "c", WindowPolicy(1, "PT4S"), 0)  # type: ignore[arg-type]
    counting, _ = [text for text in recorder.statements if text.startswith("SELECT")]
    assert "instr(paceline_slot.other_windows, " in counting


def test_lists_stay_below_a_thousand(recorder: Recorder) -> None:
    sql._find_all(recorder, [f"e{n}" for n in range(2500)])  # type: ignore[arg-type]
    assert len(recorder.statements) == 3
    assert all(text.count(":event_ids_") <= 900 for text in recorder.statements)


def test_the_clock_is_utc() -> None:
    assert str(database_now().compile(dialect=oracle.dialect())) == "SYS_EXTRACT_UTC(SYSTIMESTAMP)"


def test_listing_and_counting_slots_is_written_in_oracles_words(recorder: Recorder) -> None:
    connection: Any = recorder
    slot_records.page(connection, SlotFilter("c", owner=""), Cursor(5, "e", 7), 10)
    slot_records.beginning(connection, "e", 10)
    slot_records.keep_cancelled(connection, ["e"], from_ms(0), Cancellation("r", "a"))
    slot_records.prune_cancelled(connection, 5, 10)
    text = "\n".join(recorder.statements)
    assert "COLLATE" not in text
    assert "LIMIT " not in text
    assert "FETCH FIRST" in text or "ROWNUM" in text
