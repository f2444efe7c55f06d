"""The game day's own arithmetic, and one site of it; `make gameday` runs all of them."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

import pytest

from tests.gameday.drill import Row, table
from tests.gameday.prometheus import alert_names, faster, shipped_rules
from tests.gameday.sites import SITES

HERE = Path(__file__).parent


def drilled() -> set[str]:
    """The alerts that some drill names."""
    names = set(alert_names())
    texts = (
        node.value
        for file in HERE.glob("*.py")
        if not file.name.startswith("test_")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if text in names}


def test_every_alert_has_a_drill() -> None:
    assert set(alert_names()) - drilled() == set(), "write a drill: a fault that fires it, and its repair"


def test_time_goes_faster_in_every_span_of_a_rule_and_nowhere_else() -> None:
    rules = {
        "groups": [
            {
                "name": "one",
                "rules": [
                    {
                        "alert": "A",
                        "expr": 'max by (t) (x_oldest_due_seconds{t="a"}) > 300 unless rate(y_total[5m] offset 10m) > 5'
                        " and histogram_quantile(0.99, rate(z_seconds_bucket[1h])) > 60",
                        "for": "2m",
                    }
                ],
            }
        ]
    }
    (rule,) = faster(rules, 60)["groups"][0]["rules"]
    assert rule["expr"] == (
        'max by (t) (x_oldest_due_seconds{t="a"}) > 5 unless rate(y_total[5000ms] offset 10000ms) > 5'
        " and histogram_quantile(0.99, rate(z_seconds_bucket[60000ms])) > 60"
    )
    assert rule["for"] == "2000ms"


def test_no_span_of_a_shipped_rule_is_forgotten() -> None:
    for group in faster(shipped_rules())["groups"]:
        for rule in group["rules"]:
            assert "m]" not in rule["expr"].replace("ms]", "")
            assert "h]" not in rule["expr"]
            assert rule.get("for", "0ms").endswith("ms")


def test_the_table_says_what_did_not_fire() -> None:
    rows = [Row("PacelineDown", "it is killed", 3.2, 1.4), Row("DispatchOverdue", "nobody works")]
    assert [row.good for row in rows] == [True, False]
    assert table(rows).splitlines() == [
        "alert            fault         fired  cleared",
        "PacelineDown     it is killed  3 s    1 s",
        "DispatchOverdue  nobody works  NEVER  NEVER",
    ]


@pytest.fixture
def prometheus_installed() -> None:
    if shutil.which("prometheus") is None:
        reason = "prometheus is not installed; Debian's package of that name carries it"
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.mark.usefixtures("prometheus_installed")
async def test_alerts_about_workers_fire_by_their_faults_and_clear(tmp_path: Path) -> None:
    async with SITES["workers"](tmp_path) as day:
        rows = await day.play()
    assert all(row.good for row in rows), table(rows)
