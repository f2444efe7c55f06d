"""PostgreSQL's statements of a re-plan."""

from __future__ import annotations

from paceline.slots.stores.postgres_windows import LOCK
from paceline.sql.pipeline import Statement

# All rows in one text: fetching one value per column and row would take longer than reading them. No id, name or JSON
# text holds a tab or a line's end. Two scans, because the index still has dead entries of moved slots in between:
# scanning them again and again would take longer than all the rest. `date_part` counts in floating point, which is
# exact to the millisecond and quicker. If the windows' size is given, the windows that the slots lie in are read too.
READ = Statement(
    "paceline_slot_replan_read",
    """
    SELECT lines, (
        SELECT string_agg(
            concat((date_part('epoch', window_start) * 1000)::bigint, E'\\t', taken, E'\\t', placed), E'\\n'
        )
        FROM paceline_slot_window
        WHERE config_name = $1 AND window_start > first - $9::bigint * interval '1 ms' AND window_start <= last
            AND taken > 0
    )
    FROM (
        SELECT string_agg(concat(event_id, E'\\t', (date_part('epoch', requested_at) * 1000)::bigint, E'\\t',
            (date_part('epoch', scheduled_at) * 1000)::bigint, E'\\t', owner,
            CASE WHEN other_windows IS NOT NULL THEN concat(E'\\t', config_name, E'\\t', config_version, E'\\t',
                (date_part('epoch', window_start) * 1000)::bigint, E'\\t', other_windows) END), E'\\n') AS lines,
            min(scheduled_at) AS first, max(scheduled_at) AS last
        FROM (
            SELECT * FROM (
                (SELECT * FROM paceline_slot
                WHERE scheduled_at >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                    AND scheduled_at < 'epoch'::timestamptz + $3::bigint * interval '1 ms'
                    AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                        OR event_id COLLATE "C" > $4)
                    AND (config_name = $1 OR strpos(other_windows, $5) > 0)
                ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int)
                UNION ALL
                (SELECT * FROM paceline_slot
                WHERE scheduled_at >= 'epoch'::timestamptz + $7::bigint * interval '1 ms'
                    AND scheduled_at < 'epoch'::timestamptz + $8::bigint * interval '1 ms'
                    AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                        OR event_id COLLATE "C" > $4)
                    AND (config_name = $1 OR strpos(other_windows, $5) > 0)
                ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int)
            ) AS parts
            ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int
        ) AS page
    ) AS aggregated
    """,
)
# Plain statements over the parameters: a CTE's rows would be written twice. If a slot has changed since it was read, it
# divides by zero, which is a `Conflict`: the commit need not wait for the count.
MOVE = Statement(
    "paceline_slot_replan_move",
    """
    WITH moved AS (
        UPDATE paceline_slot AS slot
        SET window_start = 'epoch'::timestamptz + new.start * interval '1 ms',
            scheduled_at = 'epoch'::timestamptz + new.at * interval '1 ms', moved_at = clock_timestamp(),
            config_version = CASE WHEN slot.window_start = 'epoch'::timestamptz + new.start * interval '1 ms'
                THEN slot.config_version ELSE $2::int END
        FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS new(event_id, old, start, at)
        WHERE slot.event_id = new.event_id
            AND slot.scheduled_at = 'epoch'::timestamptz + new.old * interval '1 ms'
            AND slot.config_name = $1 AND slot.other_windows IS NULL
        RETURNING 1
    )
    SELECT 1 / (count(*) = cardinality($3::text[]))::int FROM moved
    """,
)
# JSON is built here from the parts that differ per slot: whole texts would take longer to make and to send. Times are
# given as texts: `to_char` takes longer than inserting the row.
PUBLISH = Statement(
    "paceline_slot_replan_publish",
    """
    INSERT INTO paceline_outbox (topic, message_key, message_value, created_at)
    SELECT $1, left(event_id, $2::int), concat('{"eventId": ', to_json(event_id), $3::text, before,
        '", "scheduledTime": "', at, '", "windowStart": "', start, $4::text), clock_timestamp()
    FROM unnest($5::text[], $6::text[], $7::text[], $8::text[]) AS new(event_id, before, start, at)
    """,
)
POLICIES = Statement(
    "paceline_slot_replan_policies",
    """
    SELECT policy.name, policy.version, policy.policy, ceil(extract(epoch FROM policy.created_at) * 1000)::bigint
    FROM unnest($1::text[], $2::int[]) AS active(name, version)
    JOIN paceline_slot_policy AS policy ON policy.name = active.name AND policy.version = active.version
    """,
)
RUNS_BEFORE = Statement(
    "paceline_slot_replan_runs_before",
    """
    SELECT requested.name, requested.at, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint
    FROM unnest($1::text[], $2::bigint[]) AS requested(name, at)
    CROSS JOIN LATERAL (
        SELECT window_start, resume_at FROM paceline_slot_run
        WHERE config_name = requested.name AND window_start <= 'epoch'::timestamptz + requested.at * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run
    """,
)
# The windows that slots may move to, from the first one on; …
TARGETS = Statement(
    "paceline_slot_replan_targets",
    """
    SELECT (extract(epoch FROM window_start) * 1000)::bigint, taken, placed FROM paceline_slot_window
    WHERE config_name = $1 AND window_start >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
    ORDER BY window_start LIMIT $3::int
    """,
)
# … and those that they leave. There may be many windows in between, which other slots have left.
SOURCES = Statement(
    "paceline_slot_replan_sources",
    """
    SELECT source.start, counted.taken, counted.placed
    FROM unnest($2::bigint[]) AS source(start)
    JOIN paceline_slot_window AS counted ON counted.config_name = $1
        AND counted.window_start = 'epoch'::timestamptz + source.start * interval '1 ms'
    """,
)
MOVE_JOINT = Statement(
    "paceline_slot_replan_move_joint",
    """
    WITH new AS MATERIALIZED (
        SELECT event_id, name, version, 'epoch'::timestamptz + old * interval '1 ms' AS old,
            'epoch'::timestamptz + start * interval '1 ms' AS start, 'epoch'::timestamptz + at * interval '1 ms' AS at,
            old_others, new_others, message
        FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
            $9::text[]) AS given(event_id, name, version, old, start, at, old_others, new_others, message)
    ), moved AS (
        UPDATE paceline_slot AS slot
        SET window_start = new.start, scheduled_at = new.at, config_version = new.version,
            other_windows = new.new_others, moved_at = clock_timestamp()
        FROM new WHERE slot.event_id = new.event_id AND slot.scheduled_at = new.old AND slot.config_name = new.name
            AND slot.other_windows = new.old_others
        RETURNING slot.event_id, new.message
    ), published AS (
        INSERT INTO paceline_outbox (topic, message_key, message_value, created_at)
        SELECT $10, left(event_id, $11::int), message, clock_timestamp() FROM moved
    )
    SELECT 1 / (count(*) = cardinality($1::text[]))::int FROM moved
    """,
)
LOOK = Statement("paceline_slot_replan_look", LOCK.sql.replace("FOR UPDATE OF config", ""))
LOCK_SLOTS = Statement(
    "paceline_slot_replan_lock_slots",
    "SELECT event_id FROM paceline_slot WHERE event_id = ANY($1::text[]) FOR NO KEY UPDATE SKIP LOCKED",
)
# An enqueue in a long transaction may have locked the slot of its item. Bookings must not wait for that too.
WAIT_BRIEFLY = Statement("paceline_slot_replan_wait_briefly", "SELECT set_config('lock_timeout', '20ms', true)")
# A session that waits for a locked row waits for the id of the transaction that has it.
AWAITED = Statement(
    "paceline_slot_replan_awaited",
    """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'transactionid' AND transactionid = pg_current_xact_id_if_assigned()::xid AND NOT granted
    """,
)
