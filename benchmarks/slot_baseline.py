"""The algorithm to beat: slot assignment with one transaction per event, as one PL/pgSQL function.

Its three phases are kept: idempotency check; first window with proportional capacity, `SKIP LOCKED`; frontier-tracked
find-and-lock over provisioned chunks, then chunk extensions. Read generously: the nested query and its scout are one
ordered skip-locked scan, so a lost race costs no second query, and the whole of it is one round trip.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count

import psycopg

SCHEMA = """
CREATE TABLE baseline_wndw_ct (wndw_strt timestamptz PRIMARY KEY, slot_ct int NOT NULL, creat_ts timestamptz NOT NULL);
CREATE INDEX baseline_wndw_ct_i01x ON baseline_wndw_ct (wndw_strt, slot_ct);
CREATE TABLE baseline_slot (
    slot_id text PRIMARY KEY, event_id text NOT NULL UNIQUE, req_ts timestamptz NOT NULL,
    wndw_strt timestamptz NOT NULL, sched_ts timestamptz NOT NULL, config_id text NOT NULL,
    creat_ts timestamptz NOT NULL);
CREATE INDEX baseline_slot_i01x ON baseline_slot (wndw_strt);
CREATE INDEX baseline_slot_i02x ON baseline_slot (creat_ts);
CREATE TABLE baseline_frontier (
    req_ts timestamptz, wndw_end timestamptz, creat_ts timestamptz NOT NULL, PRIMARY KEY (req_ts, wndw_end));

CREATE FUNCTION baseline_assign(p_event text, p_req timestamptz, p_max int, p_size interval, p_chunk int, p_chunks int)
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    aligned timestamptz := date_bin(p_size, p_req, 'epoch');
    elapsed double precision := extract(epoch FROM p_req - aligned);
    size_s double precision := extract(epoch FROM p_size);
    first_max int := floor(p_max * (size_s - elapsed) / size_s);
    found timestamptz;
    held int;
    frontier timestamptz;
    sched timestamptz;
    low double precision := 0;
BEGIN
    SELECT sched_ts INTO sched FROM baseline_slot WHERE event_id = p_event;
    IF sched IS NOT NULL THEN RETURN sched; END IF;

    INSERT INTO baseline_wndw_ct VALUES (aligned, 0, now()) ON CONFLICT DO NOTHING;
    SELECT slot_ct INTO held FROM baseline_wndw_ct WHERE wndw_strt = aligned FOR UPDATE SKIP LOCKED;
    IF held < first_max THEN
        found := aligned;
        low := elapsed;
    ELSE
        SELECT max(wndw_end) INTO frontier FROM baseline_frontier WHERE req_ts = aligned;
        IF frontier IS NULL THEN
            frontier := aligned + p_size * p_chunk;
            INSERT INTO baseline_wndw_ct SELECT aligned + p_size * n, 0, now() FROM generate_series(1, p_chunk) n
                ON CONFLICT DO NOTHING;
            INSERT INTO baseline_frontier VALUES (aligned, frontier, now()) ON CONFLICT DO NOTHING;
        END IF;
        SELECT wndw_strt INTO found FROM baseline_wndw_ct
            WHERE wndw_strt > aligned AND wndw_strt <= frontier AND slot_ct < p_max
            ORDER BY wndw_strt LIMIT 1 FOR UPDATE SKIP LOCKED;
        FOR chunk IN 1..p_chunks LOOP
            EXIT WHEN found IS NOT NULL;
            IF NOT EXISTS (SELECT FROM baseline_wndw_ct WHERE wndw_strt = frontier + p_size * p_chunk) THEN
                INSERT INTO baseline_wndw_ct SELECT frontier + p_size * n, 0, now() FROM generate_series(1, p_chunk) n
                    ON CONFLICT DO NOTHING;
            END IF;
            INSERT INTO baseline_frontier VALUES (aligned, frontier + p_size * p_chunk, now()) ON CONFLICT DO NOTHING;
            SELECT wndw_strt INTO found FROM baseline_wndw_ct
                WHERE wndw_strt > frontier AND wndw_strt <= frontier + p_size * p_chunk AND slot_ct < p_max
                ORDER BY wndw_strt LIMIT 1 FOR UPDATE SKIP LOCKED;
            frontier := frontier + p_size * p_chunk;
        END LOOP;
        IF found IS NULL THEN RETURN NULL; END IF;
    END IF;
    sched := found + make_interval(secs => low + random() * (size_s - low));
    INSERT INTO baseline_slot VALUES (gen_random_uuid()::text, p_event, p_req, found, sched, '1', now());
    UPDATE baseline_wndw_ct SET slot_ct = slot_ct + 1 WHERE wndw_strt = found;
    RETURN sched;
END $$;
"""
ASSIGN = "SELECT baseline_assign(%s, %s, 100, interval '4 seconds', 100, 2)"


def create(url: str) -> None:
    """Creates its tables and function."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA)


def assign(url: str, connections: int, events: int, requested: object, prefix: str) -> float:
    """Assigns `events` slots for one instant over `connections` connections; slots a second."""
    ids: Iterator[int] = count()
    barrier = threading.Barrier(connections + 1)

    def caller() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            connection.execute("SELECT 1")
            barrier.wait()
            while (number := next(ids)) < events:
                connection.execute(ASSIGN, (f"{prefix}-{number}", requested))

    threads = [threading.Thread(target=caller) for _ in range(connections)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return events / (time.perf_counter() - started)


def underfilled(url: str) -> int:
    """Windows that lost capacity to skipped locks: not full, though a later one is used."""
    query = """
        SELECT count(*) FROM baseline_wndw_ct w WHERE slot_ct < 100 AND EXISTS (
            SELECT FROM baseline_slot s JOIN baseline_frontier f ON f.req_ts = date_bin('4 seconds', s.req_ts, 'epoch')
            WHERE s.wndw_strt > w.wndw_strt AND w.wndw_strt >= s.req_ts AND w.wndw_strt <= f.wndw_end)
    """
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
        return row[0] if row else 0
