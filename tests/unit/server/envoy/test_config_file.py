"""The YAML of envoyproxy/ratelimit: what is read, what is refused, and how a change arrives."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from paceline.errors import ConfigurationError
from paceline.server.envoy.config_file import EnvoyConfig, parse_domain, read_domains
from paceline.server.envoy.descriptors import RateLimit, RuleNode, Unit

SIMPLE = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: %d}\n"


def limit_of(text: str, path: str) -> RateLimit | None:
    nodes: dict[str, RuleNode] = {node.path: node for node in parse_domain(text).nodes()}
    return nodes[path].limit


def test_every_member_is_read() -> None:
    limit = limit_of(
        """
domain: d
descriptors:
  - key: k
    value: v
    shadow_mode: true
    quota_mode: yes
    detailed_metric: on
    value_to_metric: false
    metadata: {anything: [1, {deep: true}]}
    rate_limit:
      name: mine
      replaces: [{name: other}, {name: third}]
      unit: Hour
      requests_per_unit: 4294967295
""",
        "d.k_v",
    )
    assert limit == RateLimit(
        4294967295, Unit.HOUR, False, True, True, "mine", ("other", "third"), detailed_metric=True
    )


@pytest.mark.parametrize("value", ["1.10", "on", "0x10", "2026-11-16", "1e3", "no", "007", "True"])
def test_a_value_is_the_text_that_is_written(value: str) -> None:
    text = (
        f"domain: d\ndescriptors:\n  - key: k\n    value: {value}\n    rate_limit: {{unit: day, requests_per_unit: 1}}"
    )
    assert limit_of(text, f"d.k_{value}") is not None


def test_an_empty_value_is_none() -> None:
    for written in ("value:", "value: ''", "value: null", "value: ~"):
        text = (
            f"domain: d\ndescriptors:\n  - key: k\n    {written}\n    rate_limit: {{unit: day, requests_per_unit: 1}}"
        )
        assert limit_of(text, "d.k") is not None


def test_anchors_and_merges() -> None:
    text = """
domain: d
descriptors:
  - &shape
    key: a
    rate_limit: &limit {unit: day, requests_per_unit: 3}
  - key: b
    rate_limit: *limit
  - <<: *shape
    key: c
"""
    assert limit_of(text, "d.a") == limit_of(text, "d.b") == limit_of(text, "d.c") == RateLimit(3, Unit.DAY)


def test_a_domain_without_descriptors_limits_nothing() -> None:
    assert [node.path for node in parse_domain("domain: d").nodes()] == ["d"]


LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("", "domain", "is missing"),
        ("- a", "domain", "is missing"),
        ("descriptors: []", "domain", "is missing"),
        ("domain: {}", "domain", "must be text"),
        ("domain: d\n: {", "YAML", "can't be read"),
        ("domain: d\nbad\x07: 1", "YAML", "can't be read"),
        ("0.25: d", "0.25", "is not known here"),
    ],
)
def test_a_document_that_is_none_is_refused(text: str, field: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_domain(text)
    assert refusal.value.field == field
    assert problem in refusal.value.problem


@pytest.mark.parametrize(
    ("descriptors", "place", "problem"),
    [
        ("{key: k}", "", "must be a list"),
        ("[a, b]", "[0]", "must be a mapping"),
        ("[{value: v}]", "[0].key", "is missing"),
        ("[{key: k, ratelimit: {}}]", "[0].ratelimit", "is not known here"),
        (f"[{{key: k, {LIMIT}}}, {{key: k}}]", "[1]", "stands here twice"),
        ("[{key: a_b}, {key: a, value: b}]", "[1]", "stands here twice"),
        ("[{key: a, descriptors: [{key: b}, {value: c}]}]", "[0].descriptors[1].key", "is missing"),
        ("[{key: k, shadow_mode: maybe}]", "[0].shadow_mode", "true or false"),
        ("[{key: k, value: v, share_threshold: true}]", "[0].share_threshold", "wildcard"),
        ("&a [{key: k, descriptors: *a}]", "", "nested more than 20 deep"),
        ("[{key: k, rate_limit: 5}]", "[0].rate_limit", "must be a mapping"),
    ],
)
def test_a_wrong_descriptor_is_named(descriptors: str, place: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_domain(f"domain: d\ndescriptors: {descriptors}")
    assert refusal.value.field == f"descriptors{place}"
    assert problem in refusal.value.problem


@pytest.mark.parametrize(
    ("limit", "member", "problem"),
    [
        ("unit: foo, requests_per_unit: 5", "unit", "'foo' is none of second, minute"),
        ("requests_per_unit: 5", "unit", "is none of"),
        ("unlimited: true, unit: day", "unit", "must not be given"),
        ("unit: day, requests_per_unit: -1", "requests_per_unit", "is not a whole number"),
        ("unit: day, requests_per_unit: 4294967296", "requests_per_unit", "is not a whole number"),
        (f"unit: day, requests_per_unit: {'9' * 5000}", "requests_per_unit", "is not a whole number"),
        ("unit: day, name: a, replaces: [{name: a}]", "replaces[0].name", "another limit"),
        ("unit: day, replaces: [{name: }]", "replaces[0].name", "another limit"),
    ],
)
def test_a_wrong_limit_is_named(limit: str, member: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_domain(f"domain: d\ndescriptors: [{{key: k, rate_limit: {{{limit}}}}}]")
    assert refusal.value.field == f"descriptors[0].rate_limit.{member}"
    assert problem in refusal.value.problem


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_folder_has_a_file_per_domain(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("domain: a")
    (tmp_path / "b.yml").write_text("domain: b")
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / ".b.yaml.swp.yaml").write_text("{")
    assert [domain.path for domain in EnvoyConfig(tmp_path).load()] == ["a", "b"]


def test_files_of_one_domain_are_one(tmp_path: Path) -> None:
    rate_limit = "{unit: minute, requests_per_unit: 1}"
    for team in ("a", "b"):
        text = f"domain: d\ndescriptors: [{{key: team, value: {team}, rate_limit: {rate_limit}}}]"
        (tmp_path / f"{team}.yaml").write_text(text)
    config = EnvoyConfig(tmp_path)
    (domain,) = config.load()
    assert [node.path for node in domain.nodes()] == ["d", "d.team_a", "d.team_b"]
    (tmp_path / "c.yaml").write_text("domain: d\ndescriptors: [{key: team, value: b}]")
    assert config.load() == [domain], "the rules stay"
    with pytest.raises(
        ConfigurationError, match=r"c\.yaml: descriptors\[0\]: 'team_b' stands here twice, or in another"
    ):
        read_domains(sorted(tmp_path.iterdir()))


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"domain: d\ndescriptors: 5", b""])
def test_a_first_load_that_fails_raises_with_the_file(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "limits.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"limits\.yaml"):
        EnvoyConfig(file).load()


def test_an_empty_folder_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no file that ends with \.yaml or \.yml"):
        EnvoyConfig(tmp_path).load()


def test_a_change_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(SIMPLE % 1)
    config = EnvoyConfig(file)
    before = config.load()
    assert config.load() is before
    replacement = tmp_path / "limits.yaml.new"
    replacement.write_text(SIMPLE % 2)
    status = file.stat()
    os.utime(replacement, ns=(status.st_atime_ns, status.st_mtime_ns))
    replacement.replace(file)
    after = config.load()
    assert after[0].children["k"].limit == RateLimit(2, Unit.DAY)
    assert config.load() is after


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(SIMPLE % 1)
    config = EnvoyConfig(file)
    before = config.load()

    def half_of_it(_: Path, _encoding: str) -> str:
        monkeypatch.undo()
        file.write_text(SIMPLE % 345)
        return "domain: d\n"

    file.write_text(SIMPLE % 23)
    monkeypatch.setattr(Path, "read_text", half_of_it)
    assert config.load() is before
    assert config.load()[0].children["k"].limit == RateLimit(345, Unit.DAY)


def test_a_file_that_turns_bad_is_reported_once_and_the_rules_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(SIMPLE % 1)
    config = EnvoyConfig(file)
    rejections: list[int] = []
    config.on_rejection = lambda: rejections.append(1)
    before = config.load()
    with caplog.at_level(logging.WARNING, "paceline.envoy"):
        file.write_text("domain: d\ndescriptors: [{}]")
        assert config.load() is before
        assert config.load() is before
        assert len(rejections) == 1
        file.unlink()
        assert config.load() is before
        assert config.load() is before
        assert len(rejections) == 2
    assert [record.getMessage().count("descriptors[0].key") for record in caplog.records] == [1, 0]
    file.write_text(SIMPLE % 5)
    assert config.load()[0].children["k"].limit == RateLimit(5, Unit.DAY)
    file.write_text("domain: d\ndescriptors: [{}]")
    config.load()
    assert len(rejections) == 3
