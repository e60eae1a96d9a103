from __future__ import annotations

import inspect
import re
from dataclasses import fields
from operator import attrgetter

import pytest
import yaml
from hydra.errors import MissingConfigException
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace import config, mistakes
from sigmatrace.compose import compose
from sigmatrace.errors import ConfigError, RunNotFoundError
from sigmatrace.export.base import Exporter
from sigmatrace.settings import build
from sigmatrace.stages.base import Exchange, Stage
from sigmatrace.usage import TEXT


def shipped():
    root = config.folder()
    return sorted(
        path.relative_to(root)
        for group in ("stage", "export", "cluster")
        for path in (root / group).glob("*.yaml")
    )


def schema_of(content):
    """Return the schema that a YAML file extends."""
    (at,) = (name for name in content["defaults"] if name.startswith("/schema/"))
    group, _, name = at.removesuffix("@_here_").removeprefix("/").rpartition("/")
    return config.SCHEMAS[group][name]


@pytest.mark.parametrize("path", shipped(), ids=str)
def test_every_default_has_a_schema_entry(path):
    content = yaml.safe_load((config.folder() / path).read_text())
    assert set(content) - {"defaults"} <= {one.name for one in fields(schema_of(content))}


@pytest.mark.parametrize("group", ["stage", "export"])
def test_every_shipped_class_has_its_name_and_the_options_of_its_schema(group):
    bases = {"stage": (Stage, Exchange), "export": (Exporter,)}[group]
    classes = config.shipped(group, bases)
    assert list(classes) == config.choices(group)
    for name, cls in classes.items():
        assert cls.name == name
        schema = schema_of(yaml.safe_load((config.folder() / group / f"{name}.yaml").read_text()))
        options = {one.name: one.default for one in fields(schema) if one.name != "_target_"}
        parameters = inspect.signature(cls).parameters
        arguments = {
            key: one.default
            for key, one in parameters.items()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        }
        assert options == arguments


def test_settings_are_typed_fields():
    made = compose(["run=x", "strict=true", "partition_mb=3", "run_id=a", "cluster.workers=2"])
    assert (made.strict, made.overwrite, made.plan) == (True, False, False)
    assert (made.partition_mb, made.run_id) == (3, "a")
    assert made.cluster == {"kind": "threads", "workers": 2}
    own = {"clock", "topology", "one_sided", "completion", "match", "traffic", "wqe", "doorbell"}
    assert set(made.stage) == own
    assert made.out == made.run / "sigmatrace-out" and made.run.is_absolute()
    with pytest.raises(AttributeError):
        attrgetter("strcit")(made)


def test_root_options_are_the_schema():
    content = yaml.safe_load((config.folder() / "config.yaml").read_text())
    assert set(content) - {"defaults", "hydra"} <= {one.name for one in fields(config.Config)}


@pytest.mark.parametrize("name", config.choices("preset"))
def test_presets_compose_and_are_never_dropped_silently(name):
    assert len(compose(["run=x", f"preset={name}"]).export) > 1
    for words in ([f"preset={name}", "export=csv"], ["+export=csv", f"+preset={name}"]):
        with pytest.raises(ConfigError, match=f"preset={name} chooses export itself: leave out"):
            compose(["run=x", *words])
    words = ["run=x", f"preset={name}", "stage=[clock,topology]"]
    if name == "analysis":
        with pytest.raises(ConfigError, match="preset=analysis chooses stage itself: leave out"):
            compose(words)
    else:
        assert set(compose(words).stage) == {"clock", "topology"}


ANALYSES = (
    *("communication", "imbalance", "links", "errors", "latency", "in_flight", "barriers"),
    *("waits", "stragglers", "critical_path", "findings"),
)


def test_preset_analysis_has_all_that_is_chosen_by_default_and_the_analyses():
    chosen = set(compose(["run=x", "preset=analysis"]).stage)
    assert set(compose(["run=x"]).stage) < chosen and {"messages", *ANALYSES} <= chosen


def test_a_preset_of_the_users_own_is_no_exception(tmp_path):
    (tmp_path / "preset").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /stage: [clock]\n"
    (tmp_path / "preset/mine.yaml").write_text(text)
    words = ["run=x", f"--config-dir={tmp_path}", "preset=mine"]
    with pytest.raises(ConfigError, match="preset=mine chooses stage itself"):
        compose([*words, "stage=[clock]"])


@pytest.mark.parametrize("word", ["run=x", "+run=x", "++run=x"])
def test_every_way_to_give_the_run(word):
    assert compose([word]).options["run"] == "x"


ODD = [
    "a b", "[x]", "a[1],b", "{x: y}", "a=b", "(x)", "it's", 'say "x"', "größe", "日本", "1e3",
    "true", "null", " lead", "trail ", "a#b", "a&b", "a;b", "x~y", "$HOME", "${run}", "a\\b",
    "a\\'b", "tab\tx", "%s", "-dash", "+plus", "a:b", "*", "?", "emoji😀", "back\\", "\\",
]  # fmt: skip


@pytest.mark.parametrize("path", ODD)
@pytest.mark.parametrize("key", ["run", "out"])
def test_odd_paths_are_exact(path, key):
    words = [f"{key}={path}"] + ([] if key == "run" else ["run=x"])
    assert compose(words).options[key] == path


@settings(max_examples=15, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_any_path_is_exact(text):
    path = "./" + text
    assert compose([f"run={path}"]).options["run"] == path


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert compose(["+run=~/x"]).options["run"] == "/somewhere/x"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("expotr=json", "unknown option 'expotr': did you mean 'export'"),
        ("+expotr=json", "unknown option 'expotr': did you mean 'export'"),
        ("perfetto.window=1s..2s", "'perfetto.window': did you mean 'export.perfetto.window'?"),
        ("+matrix.dpi=3", "'matrix.dpi': did you mean 'export.matrix.dpi'?"),
        ("perfetto=json", "'perfetto': it is chosen by export=[perfetto]"),
        ("clock=1", "'clock': it is chosen by stage=[clock]"),
        ("budget_mb=5", "'budget_mb': did you mean 'export.perfetto.budget_mb'?"),
        ("ranks=0-3", "'ranks': did you mean 'export.perfetto.ranks'?"),
        ("pcap=x", "'pcap': did you mean 'validate.pcap'?"),
        ("workers=3", "'workers': did you mean 'cluster.workers'?"),
        ("export=jsn", "unknown export 'jsn': did you mean 'json'"),
        ("export=[perfetto,jsn]", "unknown export 'jsn': did you mean 'json'"),
        ("stage=[clok]", "unknown stage 'clok': did you mean 'clock'"),
        ("cluster=thread", "unknown cluster 'thread': did you mean 'threads'"),
        ("preset=all", "unknown preset 'all': known: analysis, everything, summary"),
        ("stage.clok.x=1", "unknown option 'stage.clok': did you mean 'stage.clock'"),
        ("stage.match.x=1", "unknown option 'stage.match.x': it has no options"),
        ("+stage.match.x=1", "unknown option 'stage.match.x': it has no options"),
        ("stage.clock.x=1", "unknown option 'stage.clock.x': known: method"),
        ("export.matrix.dpi=9", "add matrix to export"),
        ("cluster.worker=2", "unknown option 'cluster.worker': did you mean 'cluster.workers'"),
        ("export.perfeto.ranks=3", "'export.perfeto': did you mean 'export.perfetto'"),
        ("+validate.pcp=x", "'validate.pcp': did you mean 'validate.pcap'"),
        ("partition_mb=big", "partition_mb=big: it takes a whole number"),
        ("export.perfetto.budget_mb=0.1", "export.perfetto.budget_mb=0.1: it takes a whole number"),
        ("export=perfetto,", "'export=perfetto,' ends within a list: no space after the comma"),
        ("export=[perfetto,", "'export=[perfetto,' ends within a list: no space after the comma"),
        ("partition_mb=0", "partition_mb must be at least 1"),
        ("strict=maybe", "strict=maybe: it takes true or false"),
        ("cluster.workers=two", "cluster.workers=two: it takes a whole number"),
        ("cluster=distributed", "cluster.address has no value"),
        ("export=json,csv", "write KEY=[A,B]"),
        ("run=", "run= is empty"),
        ("out=", "out= is empty"),
        ("stage=[", "'stage=[' ends within a list"),
        ("stage={", "cannot read the option"),
        ("json", "'json' is not an option"),
        ("--mutlirun", "unknown flag '--mutlirun': did you mean '--multirun'"),
        ("--export=json", "unknown flag '--export': options are KEY=VALUE: export=json"),
        ("--run-id", "unknown flag '--run-id': options are KEY=VALUE: run_id=VALUE"),
        ("hydra.searchpath=[/not/there]", "no such configuration folder: /not/there"),
        ("--config-dir=/not/there", "no such configuration folder: /not/there"),
    ],
)
def test_mistakes_are_named_in_one_line(word, said):
    with pytest.raises(ConfigError) as raised:
        compose(["run=x", word])
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_lists_of_the_time_line_may_be_in_brackets():
    made = compose(["run=x", "export=perfetto", "export.perfetto.ranks=[0,1-3]"])
    (exporter,) = build("export", made.export, (Exporter,))
    assert exporter._choice.ranks == ((0, 0), (1, 3))


def test_several_runs_need_a_multirun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for word in ("a,b", f"{tmp_path}/a,b"):
        with pytest.raises(RunNotFoundError, match="for several runs add --multirun") as raised:
            compose([f"run={word}"])
        assert raised.value.exit_code == 3
    assert compose(["run=a,c"]).run == tmp_path / "a,c"
    (tmp_path / "a,b").mkdir()
    assert compose(["run=a,b"]).run == tmp_path / "a,b"


@pytest.mark.parametrize("group", ["stage", "export"])
def test_a_file_without_its_package_is_told(group, tmp_path):
    (tmp_path / group).mkdir()
    (tmp_path / group / "large.yaml").write_text("_target_: large.Large\nminimum_bytes: 5\n")
    words = ["run=x", f"hydra.searchpath=[{tmp_path}]", f"{group}=[large]"]
    with pytest.raises(ConfigError, match=f"first line must be '# @package {group}.NAME'"):
        compose(words)
    text = (tmp_path / group / "large.yaml").read_text()
    (tmp_path / group / "large.yaml").write_text(f"# @package {group}.large\n{text}")
    made = compose(words)
    assert getattr(made, group) == {"large": {"_target_": "large.Large", "minimum_bytes": 5}}


@pytest.mark.parametrize("name", ["submitit_local", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_says_what_installs_it(name):
    error = MissingConfigException("", f"hydra/launcher/{name}", ["basic"])
    said = str(mistakes.explain(error))
    assert said.startswith(f"hydra/launcher={name} needs hydra-submitit-launcher, which is not")
    assert "pip install -e '.[cluster]'" in said
    error = MissingConfigException("", "hydra/launcher/basc", ["basic"])
    assert "did you mean 'basic'" in str(mistakes.explain(error))


def test_an_option_written_as_a_flag_is_understood():
    with pytest.raises(ConfigError, match=r"options are KEY=VALUE: export=json$"):
        compose(["--export", "json"])
    with pytest.raises(ConfigError, match=r"options are KEY=VALUE: overwrite=VALUE$"):
        compose(["--overwrite", "run=x"])


def test_the_flags_that_are_suggested_are_those_of_the_help():
    with pytest.raises(ConfigError) as raised:
        compose(["--nothing"])
    _, known = raised.value.hint.split("known: ")
    shown = TEXT.partition("Flags\n")[2].partition("Exit codes")[0]
    flags = [sorted(re.findall("--[a-z-]+", text)) for text in (known, shown)]
    assert flags[0] == flags[1] and len(flags[0]) == 7


def test_the_help_names_all_values_of_resume():
    shown = TEXT.partition("  resume=")[2].partition("  strict=")[0]
    assert all(re.search(rf"\b{value}\b", shown) for value in config.RESUMES)


def test_run_is_needed_but_not_for_the_plan():
    with pytest.raises(ConfigError, match="no run folder is given"):
        compose(["export=json"])
    assert compose(["plan=true"]).plan


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no.such.module.Thing", "cannot import"),
        ("sigmatrace.plan.Thing", "has no Thing"),
        ("broken_module.Thing", "cannot import broken_module: SyntaxError"),
        ("sigmatrace.plan.Plan", "is not a subclass of Exporter"),
        ("Thing", "names no class"),
    ],
)
def test_targets_are_checked(target, said, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=said):
        build("export", {"x": {"_target_": target}}, (Exporter,))


def test_constructor_may_refuse():
    chosen = {"matrix": {"_target_": "sigmatrace.export.matrix.MatrixExporter", "dpi": 1}}
    with pytest.raises(ConfigError, match=r"export\.matrix refuses its options: dpi must be"):
        build("export", chosen, (Exporter,))
