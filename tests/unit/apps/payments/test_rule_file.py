"""The file of rules is read again when it changes, and a mistake in it leaves those before."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from paceline.errors import ConfigurationError
from paceline_payments import rule_file
from paceline_payments.rule_file import RuleFile


def test_changed_rules_hold_and_wrong_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rule_file, "LOOK_SECONDS", 0.0)
    path = tmp_path / "rules.toml"
    path.write_text('[limits]\nEUR = "10.00"\n')
    rules = RuleFile(path)
    assert rules().limits == {"EUR": Decimal("10.00")}
    path.write_text('[limits]\nEUR = "1000.00"\n')
    assert rules().limits == {"EUR": Decimal("1000.00")}
    path.write_text('[limits]\nEUR = "many"\nUSD = "1.00"\n')
    assert rules().limits == {"EUR": Decimal("1000.00")}
    assert "limits.EUR" in caplog.text
    path.unlink()
    assert rules().limits == {"EUR": Decimal("1000.00")}


def test_a_wrong_file_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('duplicates = "perhaps"')
    with pytest.raises(ConfigurationError, match="duplicates"):
        RuleFile(tmp_path / "rules.toml")
