from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ConfigurationError
from paceline.redis.url import RedisUrl
from paceline.server.setting_sections import SlotSettings
from paceline.server.settings import (
    Settings,
    _sections,
    is_loopback,
    masked,
    unknown_variable_warnings,
    unknown_variables,
)
from paceline.sql.engine import Database
from paceline_payments.settings import PaymentSettings
from paceline_sms.settings import SmsSettings


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from this machine."""
    import os

    for name in list(os.environ):
        if name.startswith("PACELINE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_the_contract_s_defaults() -> None:
    settings = Settings.load()
    assert (settings.database_url, settings.redis_url) == ("sqlite:///paceline.db", None)
    assert (settings.host, settings.port, settings.log_format) == ("127.0.0.1", 8080, "text")
    assert (
        settings.temporal_namespace,
        settings.section(PaymentSettings).tps,
        settings.section(PaymentSettings).mode,
    ) == ("default", 50, "queue")
    assert settings.slots.default_config == "default"


def test_the_environment_wins_over_the_file_and_a_given_value_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("paceline.toml").write_text("port = 1\nhost = '::1'\n[slots]\nbatch = 5\nbulk_batch = 6\n")
    monkeypatch.setenv("PACELINE_PORT", "2")
    monkeypatch.setenv("PACELINE_SLOTS_BATCH", "7")
    settings = Settings.load()
    assert (settings.port, settings.host) == (2, "::1")
    assert (settings.slots.batch, settings.slots.bulk_batch) == (7, 6)
    assert Settings.load(port=3, host=None).port == 3


def test_the_file_may_lie_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[payments]\ntps = 9\n")
    monkeypatch.setenv("PACELINE_SETTINGS_FILE", str(other))
    assert Settings.load().section(PaymentSettings).tps == 9


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("prot = 1", "prot"),
        ("[slots]\nbtch = 1", "slots.btch"),
        ("port = 'x'", "port"),
        ("port = 70000", "port"),
        ("[http]\nmax_batch = 20000", "http.max_batch"),
        ("[slots]\ndefault_window = '4 seconds'", "slots.default_window"),
        ("port =", "paceline.toml"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, field: str) -> None:
    Path("paceline.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Settings.load()
    assert caught.value.field == field


def test_a_mistake_in_the_environment_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SLOTS_BATCH", "hunter2")
    with pytest.raises(ConfigurationError) as caught:
        Settings.load()
    assert caught.value.field == "PACELINE_SLOTS_BATCH"
    assert "hunter2" not in str(caught.value)


def test_a_missing_settings_file_that_was_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SETTINGS_FILE", "nowhere.toml")
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        Settings.load()


def test_a_folder_in_the_place_of_the_settings_file_is_an_error() -> None:
    Path("paceline.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"paceline\.toml: can't be read: Is a directory"):
        Settings.load()


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_REDIS_URL", "")
    assert Settings.load().redis_url is None


def test_secrets_stay_out_of_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", "postgresql://u:hunter2@h/x")
    monkeypatch.setenv("PACELINE_API_TOKEN", "hunter2")
    assert "hunter2" not in repr(Settings.load())


def test_listening_to_the_world_needs_a_token() -> None:
    with pytest.raises(ConfigurationError, match="PACELINE_API_TOKEN"):
        Settings.load(host="0.0.0.0").refuse_exposure()
    Settings.load(host="0.0.0.0", api_token="t").refuse_exposure()
    Settings.load(host="127.0.0.1").refuse_exposure()


@pytest.mark.parametrize("token", ["pässwörd", " token", "token ", "to\tken", "\n", "to\nken"])
@pytest.mark.parametrize("name", ["PACELINE_API_TOKEN", "PACELINE_ADMIN_TOKEN"])
def test_a_token_that_could_never_be_presented_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, token: str
) -> None:
    monkeypatch.setenv(name, token)
    with pytest.raises(ConfigurationError, match=f"^{name}: could never be presented") as refusal:
        Settings.load()
    assert "wörd" not in str(refusal.value)


def test_a_token_from_a_file_may_end_with_its_line() -> None:
    settings = Settings.load(api_token="word\r\n", admin_token="two words\n")
    assert settings.api_token is not None
    assert settings.admin_token is not None
    assert settings.api_token.get_secret_value() == "word"
    assert settings.admin_token.get_secret_value() == "two words"


def test_one_secret_for_callers_and_administrators_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_API_TOKEN", "the-same-word")
    monkeypatch.setenv("PACELINE_ADMIN_TOKEN", "the-same-word\n")
    with pytest.raises(ConfigurationError, match=r"^PACELINE_ADMIN_TOKEN: is the same as api_token"):
        Settings.load()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u:p/w@x@h:5/x", "postgresql://u:***@h:5/x"),
        ("redis://:p@h", "redis://:***@h"),
        ("redis://p@h", "redis://***@h"),
        ("https://t@h/x?key=k", "https://***@h/x?key=***"),
        ("p", "***"),
        ("postgresql://h/x?password=p&a=b", "postgresql://h/x?password=***&a=b"),
        ("sqlite:///paceline.db", "sqlite:///paceline.db"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("postgresql://u:p w\tx\ny@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u/v:p@h/x", "postgresql://***:***@h/x"),
        ("postgresql://u@h/x", "postgresql://u@h/x"),
        ("postgresql://h/x?sslpassword=p#q r&a=b", "postgresql://h/x?sslpassword=***&a=b"),
    ],
)
def test_masked(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_misspelt_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABSE_URL", "x")
    monkeypatch.setenv("PACELINE_REQUIRE", "all")
    monkeypatch.setenv("PACELINE_SLOTS_BATCH", "1")
    assert unknown_variables() == ["PACELINE_DATABSE_URL"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("PACELINE_DATABSE_URL", "PACELINE_DATABASE_URL"),
        ("PACELINE_PROT", "PACELINE_PORT"),
        ("PACELINE_REDIS", "PACELINE_REDIS_URL"),
        ("PACELINE_CONFIG_FILE", "PACELINE_SETTINGS_FILE"),
        ("PACELINE_SLOT_BATCH", "PACELINE_SLOTS_BATCH"),
        ("PACELINE_SLOTS_BTCH", "PACELINE_SLOTS_BATCH"),
        ("PACELINE_PAYMENTS_TSP", "PACELINE_PAYMENTS_TPS"),
        ("PACELINE_SLOTS_DEFAULT_MAX", "PACELINE_SLOTS_DEFAULT_MAX_PER_WINDOW"),
        ("PACELINE_WORKERS", "PACELINE_HTTP_WORKERS"),
    ],
)
def test_a_misspelt_variable_is_reported_with_the_closest_known_one(
    monkeypatch: pytest.MonkeyPatch, typed: str, meant: str
) -> None:
    monkeypatch.setenv(typed, "s3cret")
    assert unknown_variable_warnings() == [f"{typed} is not a setting paceline knows; did you mean {meant}?"]


@pytest.mark.parametrize("typed", ["PACELINE_XYZZYQQQ", "PACELINE_XX", "PACELINE_DEBUG", "PACELINE_"])
def test_an_unknown_variable_that_is_like_no_other_has_no_hint(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setenv(typed, "s3cret")
    assert unknown_variable_warnings() == [f"{typed} is not a setting paceline knows"]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("[slot]\nbatch = 1\n", "slot: is not a setting paceline knows in paceline.toml; did you mean slots?"),
        (
            "[slots]\ndefault_max = 1\n",
            "slots.default_max: is not a setting paceline knows in paceline.toml; "
            "did you mean slots.default_max_per_window?",
        ),
        ("xyzzyqqq = 1\n", "xyzzyqqq: is not a setting paceline knows in paceline.toml"),
    ],
)
def test_a_misspelt_setting_in_the_file_is_named_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, problem: str
) -> None:
    (tmp_path / "paceline.toml").write_text(written)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        Settings.load()
    assert str(refused.value) == problem


def test_a_misspelt_variable_of_a_section_is_a_warning_and_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SLOTS_BTCH", "x")
    monkeypatch.setenv("PACELINE_SLOTS_BULK_BATCH", "7")
    assert Settings.load().slots == SlotSettings(bulk_batch=7)


def test_a_misspelt_setting_in_the_file_is_refused_also_if_a_variable_is_misspelt_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paceline.toml").write_text("[slots]\nbtch = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_SLOTS_BTCH", "1")
    with pytest.raises(ConfigurationError, match=r"^slots\.btch: .* in paceline\.toml; did you mean slots\.batch\?$"):
        Settings.load()


def test_variables_count_in_any_case_and_a_section_may_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("paceline_port", "9")
    monkeypatch.setenv("PACELINE_SLOTS", '{"batch": 5, "bulk_batch": 6}')
    monkeypatch.setenv("PACELINE_SLOTS_BULK_BATCH", "7")
    settings = Settings.load()
    assert (settings.port, settings.slots.batch, settings.slots.bulk_batch) == (9, 5, 7)
    monkeypatch.setenv("PACELINE_SLOTS", "batch=5")
    with pytest.raises(ConfigurationError, match=r"^PACELINE_SLOTS: is not valid JSON"):
        Settings.load()


def test_a_given_section_replaces_what_others_say_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PAYMENTS_MODE", "direct")
    assert Settings.load(payments=PaymentSettings(tps=7)).section(PaymentSettings) == PaymentSettings(tps=7)
    assert Settings.load(payments={"tps": 7}).section(PaymentSettings) == PaymentSettings(tps=7, mode="direct")


def test_levels_and_formats_are_taken_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("PACELINE_LOG_FORMAT", "Json")
    assert (Settings.load().log_level, Settings.load().log_format) == ("warning", "json")


def test_every_setting_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/settings.md").read_text()
    cells = [
        [cell.strip(" `") for cell in row.split("|")] for row in page.splitlines() if row.startswith("| `PACELINE")
    ]
    documented = {row[1]: row[3] for row in cells}
    settings, sections = Settings.load().model_dump(), _sections()
    expected = {}
    for name, value in settings.items():
        for inner, default in value.items() if name in sections else [("", value)]:
            variable = f"PACELINE_{name}{'_' if inner else ''}{inner}".upper()
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            expected[variable] = "" if default is None else shown
    assert documented == expected, "docs/reference/settings.md and settings.py differ: add or change its row"


def test_what_others_write_is_redacted() -> None:
    settings = Settings.load(
        database_url="postgresql://me:p%40ss-word@db/x?sslpassword=k3y-word",
        redis_url="redis://:r3dis-word@r",
        api_token="t0ken-word",
        sms={
            "webhook_url": "https://us3r-word:pw-word@sms/hook?sig=s1g-word&v=1",
            "opensearch_headers": {"authorization": "s3arch-word"},
        },
    )
    text = "p@ss-word p%40ss-word k3y-word r3dis-word t0ken-word us3r-word pw-word s1g-word s3arch-word v=1 me db"
    assert settings.redacted(text) == " ".join(["***"] * 9) + " v=1 me db"
    for secret in ("p%40ss-word", "t0ken-word", "r3dis-word", "s1g-word"):
        assert secret not in repr(settings)


@pytest.mark.parametrize("url", ["postgresql://u:h4lf@s3cret@h/d", "postgresql://u:s3cret@h:port/d", "s3cret"])
def test_an_unreadable_database_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Database(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis://:h4lf/s3cret@h", "redis://:h4lf?s3cret@h", "redis://s3cret@h", "s3cret", "redis://:s3cret@h:port"]
)
def test_an_unreadable_redis_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RedisUrl.parse(url)
    assert "s3cret" not in str(refused.value)
    assert "h4lf" not in str(refused.value)


@pytest.mark.parametrize("variable", ["PACELINE_SMS_WEBHOOK_URL", "PACELINE_PAYMENTS_DOWNSTREAM_URL"])
@pytest.mark.parametrize(
    "url",
    [
        "http://[bad/s3cret-word",
        "s3cret-word",
        "s3cret-word.example/hook",
        "ftp://s3cret-word.example",
        "http://",
        "http:///s3cret-word",
        "https://user:s3cret-word@bank.example:99999/",
        "https://user:s3cret-word@bank.example:0/",
        "https://user:s3cret-word@bank.example:port/",
        "https://bank.example/s3cret-word\n",
        "https://bank.example/s3cret word",
    ],
)
def test_a_provider_s_url_is_checked_and_never_shown(monkeypatch: pytest.MonkeyPatch, variable: str, url: str) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(ConfigurationError) as refused:
        Settings.load()
    assert refused.value.field == variable
    assert "s3cret" not in str(refused.value)


def test_good_urls_of_providers_are_taken_as_they_are() -> None:
    for url in ("http://127.0.0.1:1", "https://user:pw@[::1]:8443/a?b=c", "https://bücher.example/ä", "HTTPS://BANK/"):
        settings = Settings.load(sms={"webhook_url": url}, payments={"downstream_url": url})
        assert (settings.section(SmsSettings).webhook_url, settings.section(PaymentSettings).downstream_url) == (
            url,
            url,
        )


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ('{"X-Team": "a\\nX-Other: b"}', "no HTTP header"),
        ('{"X Team": "a"}', "no HTTP header"),
        ('{"X-Team": "ö"}', "no HTTP header"),
        ('{"content-length": "1"}', "paceline's own"),
        ('{"Idempotency-Key": "1"}', "paceline's own"),
    ],
)
def test_headers_of_the_webhook_are_checked(monkeypatch: pytest.MonkeyPatch, headers: str, problem: str) -> None:
    monkeypatch.setenv("PACELINE_SMS_WEBHOOK_HEADERS", headers)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        Settings.load()
    assert refused.value.field == "PACELINE_SMS_WEBHOOK_HEADERS"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:S3 cret\tPw@h/x",
        "postgresql://u:S3%20cret%09Pw@h/x",
        "postgresql://h/x?password=S3 cret\tPw",
        "postgresql://h/x?password=S3+cret%09Pw",
        "u:S3 cret\tPw@h",
    ],
)
def test_a_password_with_spaces_is_a_secret_as_a_whole(url: str) -> None:
    settings = Settings.load(database_url=url)
    assert "S3 cret\tPw" in settings.secrets()
    assert "cret" not in settings.redacted(f"can't connect to {url} as 'S3 cret\tPw'")


@pytest.mark.parametrize("kind", ["", "TRACES_"])
def test_the_collectors_url_and_headers_are_secret(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT", "http://u:S3cret1@h:4318/S3cret2/v1/traces?k=S3cret3")
    monkeypatch.setenv(
        f"OTEL_EXPORTER_OTLP_{kind}HEADERS", "x-key=S3cret4,authorization=Bearer%20S3cret5,Bearer S3cret6"
    )
    text = "http://u:S3cret1@h:4318/S3cret2/v1/traces?k=S3cret3 S3cret4 Bearer S3cret5 'Bearer S3cret6' S3cret6"
    shown = Settings.load().redacted(text)
    assert "S3cret" not in shown
    assert "/v1/traces" in shown


def test_a_short_admin_token_is_refused_where_others_can_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ADMIN_TOKEN", "a" * 15)
    Settings.load(host="127.0.0.1").refuse_exposure()
    with pytest.raises(ConfigurationError, match=r"^PACELINE_ADMIN_TOKEN: is shorter than 16 characters") as refused:
        Settings.load(host="0.0.0.0").refuse_exposure(other_tokens=True)
    assert "aaa" not in str(refused.value)
    Settings.load(host="0.0.0.0", admin_token="a" * 16).refuse_exposure()
