"""A report as it is read: tables by their id, figures, text, and what it would load."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "input", "br"}
LOADING = {"src", "srcset", "href", "action", "data", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """A page, taken apart.

    Attributes:
        tables: By id: rows of (text, value), the head first.
        figures: By id: all text of the SVG, title and description first.
        tags: How often each element is there.
        ids: All of them.
        loads: Values of attributes by which something is loaded, but places in the page.
        text: All text but scripts and styles.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, str]]]] = {}
        self.figures: dict[str, str] = {}
        self.tags: dict[str, int] = {}
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self._table: list[list[tuple[str, str]]] = []
        self._figure = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.ids += [given["id"]] if "id" in given else []
        for name in LOADING & given.keys():
            is_here = given[name].startswith("#")
            (self.links if is_here else self.loads).append(given[name])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = self.tables[given["id"]] = []
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append(("", given.get("data-value", "")))
        elif tag == "figure":
            self._figure = given["id"]
            self.figures[self._figure] = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            return
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            text, value = self._table[-1][-1]
            self._table[-1][-1] = text + data, value
        if "figure" in self.open:
            self.figures[self._figure] += data

    def rows(self, table: str) -> list[dict[str, str]]:
        """Texts of a table's rows by heading; of numbers the value that is sorted by."""
        head, *rows = self.tables[f"table-{table}"]
        return [
            {name: value or text for (name, _), (text, value) in zip(head, row, strict=True)}
            for row in rows
        ]
