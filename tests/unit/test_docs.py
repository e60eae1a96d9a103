"""The documentation names things that exist: files, headings, commands, options."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from sigmatrace import argv, config
from sigmatrace.capture import options, pack
from sigmatrace.diff import command as diff
from sigmatrace.query import command as query
from sigmatrace.query import shipped
from sigmatrace.schema import INDEX_TABLES, STAGE_TABLES
from sigmatrace.schema_gpu import GPU_INDEX_TABLES, GPU_STAGE_TABLES
from sigmatrace.view import command as view

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "tests/rigs/**/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`|^ {4,}(.+)$", re.MULTILINE)
EXPLAINED = re.compile(r"^\| `(\w+)` \| [^|\n]+ \|\n\|---\|---\|\n((?:\|.+\n)+)", re.MULTILINE)
HYDRA = ("hydra.searchpath", "hydra.sweep.dir", "hydra/launcher", "hydra.launcher.")
OWN = {"burst"}  # the stage of examples/custom_stage, which tests of its own run


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab form them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


def commands(program: str) -> list[tuple[str, list[str]]]:
    """The program's own options in all commands of all pages, with the page's name."""
    found = []
    for page in PAGES:
        for inline, indented in CODE.findall(page.read_text().replace("\\\n", " ")):
            line = inline or indented
            if re.match(rf"(\$ |eval \"\$\()?{program} ", line):
                options = line.partition(f"{program} ")[2].partition(" -- ")[0]
                options = options.partition("  ")[0].removesuffix(')"')
                found.append((name(page), shlex.split(options)))
    return found


def test_what_is_to_be_installed_is_a_checkout_and_stays_one():
    sources = (ROOT / "sigmatrace").rglob("*.py")
    texts = [path.read_text() for path in (*PAGES, ROOT / "docs/notebook.ipynb", *sources)]
    found = [word for text in texts for word in re.findall(r"pip install ([^\[\n]*)\[", text)]
    assert set(found) == {"-e '."}
    assert "pip install -e '.[query]'" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["quickstart", "analysis", "query", "diff", "report"])
def test_each_run_of_a_page_has_a_folder_of_its_own(page):
    """A folder that is there is refused, so that the page could not be typed from its top."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    made = re.findall(r"sigmatrace\.testing\.(?:synthetic|scenarios \w+) ([\w-]+)", text)
    captures = re.findall(r"^ {4}sigmatrace-capture .*?-o ([\w-]+)(.*)$", text, re.MULTILINE)
    together = {folder for folder, more in captures if "--run-id" in more}  # by several commands
    made += [*(folder for folder, more in captures if "--run-id" not in more), *together]
    assert made and sorted(made) == sorted(set(made))


def test_all_exporters_are_listed():
    text = (ROOT / "docs" / "pipeline.md").read_text()
    (row,) = re.findall(r"^\| `export` \| ([^|]+) \|", text, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", row)) == config.choices("export")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page.suffix != ".md" or page in seen:
            continue
        seen.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(page.read_text()))
        waiting += [page.parent / link for link in links if link and "://" not in link]
    assert set(PAGES) == seen


def column_tables() -> dict[str, list[str]]:
    """Columns by table, of which a page explains each: the head of the page's table names it."""
    found = {}
    for page in PAGES:
        for table, rows in EXPLAINED.findall(page.read_text()):
            cells = (row.split("|")[1] for row in rows.splitlines())
            found[table] = [word for cell in cells for word in re.findall(r"`(\w+)`", cell)]
    return found


def test_columns_are_explained_as_they_are():
    explained, known = column_tables(), {**INDEX_TABLES, **STAGE_TABLES}
    assert {*GPU_INDEX_TABLES, *GPU_STAGE_TABLES, "queues"} <= set(explained)
    for table, columns in explained.items():
        assert sorted(columns) == sorted(known[table]), table


@pytest.mark.parametrize(("page", "words"), commands("sigmatrace-pipeline"))
def test_options_of_the_pipeline_are_known(page, words):
    for override in argv.parse(words).overrides:
        key, _, value = override.lstrip("+").partition("=")
        group, *path = key.split(".")
        if group in config.GROUPS and not path:
            assert set(value.strip("[]").split(",")) <= {*config.choices(group), *OWN}
        elif group == "cluster":
            schemas = config.SCHEMAS["schema/cluster"].values()
            assert any(path == [one.name] for schema in schemas for one in fields(schema)), key
        elif group == "validate":
            assert path in [[one.name] for one in fields(config.ValidateConfig)], key
        elif group in config.GROUPS:
            name, option = path
            made = config.shipped(group, (object,))[name]
            assert option in inspect.signature(made).parameters, key
        else:
            known = {one.name for one in fields(config.Config)}
            assert key in known or key.startswith(HYDRA), key


@pytest.mark.parametrize(("page", "words"), commands("sigmatrace-pack"))
def test_options_of_the_packer_are_known(page, words):
    if "--help" not in words:
        pack.parser().parse_args(words)


@pytest.mark.parametrize(("page", "words"), commands("sigmatrace-query"))
def test_options_of_queries_are_known(page, words):
    asked = query.parser().parse_intermixed_args(words)
    name = asked.name or asked.show
    assert name in {None, "NAME"} | shipped.all_queries().keys()


@pytest.mark.parametrize(("page", "words"), commands("sigmatrace-view"))
def test_options_of_the_viewer_are_known(page, words):
    view.parser().parse_args(words)


@pytest.mark.parametrize(("page", "words"), commands("sigmatrace-diff"))
def test_options_of_comparisons_are_known(page, words):
    diff.parser().parse_args(words)


@pytest.mark.parametrize(("page", "words"), commands("sigmatrace-capture"))
def test_options_of_the_capture_are_known(page, words):
    known = {text for action in options.parser()._actions for text in action.option_strings}
    assert {word for word in words if word.startswith("-")} <= known
