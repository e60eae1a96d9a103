from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace import config
from sigmatrace.errors import ConfigError
from sigmatrace.export.base import Exporter
from sigmatrace.stages.base import Exchange, Stage


def shipped():
    root = config.folder()
    return sorted(
        path.relative_to(root)
        for group in ("stage", "export", "cluster")
        for path in (root / group).glob("*.yaml")
    )


@pytest.mark.parametrize("path", shipped(), ids=str)
def test_every_default_has_a_schema_entry(path):
    content = yaml.safe_load((config.folder() / path).read_text())
    schema = config.SCHEMAS[f"schema/{path.parent}"][path.stem]
    assert f"/schema/{path.with_suffix('')}@_here_" in content.pop("defaults")
    assert set(content) <= {one.name for one in fields(schema)}


@pytest.mark.parametrize("group", ["stage", "export"])
def test_every_schema_is_shipped_and_is_the_constructor(group):
    assert sorted(config.SCHEMAS[f"schema/{group}"]) == config.choices(group)
    bases = {"stage": (Stage, Exchange), "export": (Exporter,)}[group]
    for name, schema in config.SCHEMAS[f"schema/{group}"].items():
        content = yaml.safe_load((config.folder() / group / f"{name}.yaml").read_text())
        (made,) = config.build(group, {name: {"_target_": content["_target_"]}}, bases)
        assert made.name == name
        options = {one.name: one.default for one in fields(schema) if one.name != "_target_"}
        parameters = inspect.signature(type(made)).parameters
        arguments = {
            key: one.default
            for key, one in parameters.items()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        }
        assert options == arguments


def test_root_options_are_the_schema():
    content = yaml.safe_load((config.folder() / "config.yaml").read_text())
    assert set(content) - {"defaults", "hydra"} <= {one.name for one in fields(config.Config)}


@pytest.mark.parametrize("name", config.choices("preset"))
def test_presets_compose_and_the_command_line_wins(name):
    assert len(config.compose(["run=x", f"preset={name}"]).export) > 1
    assert list(config.compose(["run=x", f"preset={name}", "export=csv"]).export) == ["csv"]


@pytest.mark.parametrize("word", ["run=x", "+run=x", "++run=x"])
def test_every_way_to_give_the_run(word):
    assert config.compose([word]).options["run"] == "x"


ODD = [
    "a b", "[x]", "a[1],b", "{x: y}", "a=b", "(x)", "it's", 'say "x"', "größe", "日本", "1e3",
    "true", "null", " lead", "trail ", "a#b", "a&b", "a;b", "x~y", "$HOME", "${run}", "a\\b",
    "a\\'b", "tab\tx", "%s", "-dash", "+plus", "a:b", "*", "?", "emoji😀", "back\\", "\\",
]  # fmt: skip


@pytest.mark.parametrize("path", ODD)
@pytest.mark.parametrize("key", ["run", "out"])
def test_odd_paths_are_exact(path, key):
    words = [f"{key}={path}"] + ([] if key == "run" else ["run=x"])
    assert config.compose(words).options[key] == path


@settings(max_examples=15, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_any_path_is_exact(text):
    path = "./" + text
    assert config.compose([f"run={path}"]).options["run"] == path


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert config.compose(["+run=~/x"]).options["run"] == "/somewhere/x"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("expotr=json", "unknown option 'expotr': did you mean 'export'"),
        ("+expotr=json", "unknown option 'expotr': did you mean 'export'"),
        ("export=jsn", "unknown export 'jsn': did you mean 'json'"),
        ("export=[perfetto,jsn]", "unknown export 'jsn': did you mean 'json'"),
        ("stage=[clok]", "unknown stage 'clok': did you mean 'clock'"),
        ("cluster=thread", "unknown cluster 'thread': did you mean 'threads'"),
        ("preset=all", "unknown preset 'all': known: everything, summary"),
        ("stage.clok.x=1", "unknown option 'stage.clok': did you mean 'clock'"),
        ("stage.clock.x=1", "unknown option 'stage.clock.x': it has no options"),
        ("+stage.clock.x=1", "unknown option 'stage.clock.x': it has no options"),
        ("export.matrix.dpi=9", "add matrix to export"),
        ("cluster.worker=2", "unknown option 'cluster.worker': did you mean 'workers'"),
        ("partition_mb=big", "option partition_mb: Value 'big'"),
        ("partition_mb=0", "partition_mb must be at least 1"),
        ("strict=maybe", "option strict"),
        ("cluster.workers=two", "option cluster.workers"),
        ("cluster=distributed", "cluster.address has no value"),
        ("export=json,csv", "write KEY=[A,B]"),
        ("run=", "run= is empty"),
        ("out=", "out= is empty"),
        ("stage=[", "cannot read the option"),
        ("json", "'json' is not an option"),
        ("--mutlirun", "unknown flag '--mutlirun': did you mean '--multirun'"),
        ("hydra.searchpath=[/not/there]", "no such configuration folder: /not/there"),
        ("--config-dir=/not/there", "no such configuration folder: /not/there"),
    ],
)
def test_mistakes_are_named_in_one_line(word, said):
    with pytest.raises(ConfigError) as raised:
        config.compose(["run=x", word])
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_run_is_needed_but_not_for_the_plan():
    with pytest.raises(ConfigError, match="no run folder is given"):
        config.compose(["export=json"])
    assert config.compose(["plan=true"]).plan


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no.such.module.Thing", "cannot import"),
        ("sigmatrace.plan.Thing", "has no Thing"),
        ("sigmatrace.plan.Plan", "is not a subclass of Exporter"),
        ("Thing", "names no class"),
    ],
)
def test_targets_are_checked(target, said):
    with pytest.raises(ConfigError, match=said):
        config.build("export", {"x": {"_target_": target}}, (Exporter,))


def test_constructor_may_refuse():
    chosen = {"matrix": {"_target_": "sigmatrace.export.matrix.MatrixExporter", "dpi": 1}}
    with pytest.raises(ConfigError, match=r"export\.matrix refuses its options: dpi must be"):
        config.build("export", chosen, (Exporter,))
