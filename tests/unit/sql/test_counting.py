"""Counting rows reads an index alone, and no further than its bound."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.counting import count_up_to

table = sa.Table(
    "things",
    sa.MetaData(),
    sa.Column("id", sa.String(20), primary_key=True),
    sa.Column("at", sa.Integer),
    sa.Column("text", sa.Text),
    sa.Index("things_at_ix", "at"),
)


def test_rows_are_counted_up_to_the_bound_by_the_index_of_the_condition() -> None:
    engine = sa.create_engine("sqlite://")
    sent: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda _c, _k, statement, *_rest: sent.append(statement))
    with engine.begin() as connection:
        table.metadata.create_all(connection)
        connection.execute(table.insert(), [{"id": f"n-{number}", "at": number, "text": ""} for number in range(20)])
        counts = [count_up_to(connection, table, most, table.c.at >= 5) for most in (10, 15, 16, 100)]
        assert counts == [10, 15, 15, 15]
        assert count_up_to(connection, table, 100) == 20
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent[-2]}", (1, 5, 100, 0)).all()
    engine.dispose()
    assert any("COVERING INDEX things_at_ix" in step.detail for step in plan), plan
