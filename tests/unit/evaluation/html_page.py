"""A page as a browser's parser sees it: elements, their text, tables by caption; and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link", "source", "wbr"}
FETCHES = ("src", "srcset", "poster", "data", "action", "formaction", "background", "ping", "href")
HIDDEN = ("style", "title", "script")


@dataclass
class Table:
    """Caption, column headings, and the cells of each body row, its heading first."""

    caption: str = ""
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def row(self, head: str) -> list[str]:
        """The cells of the row with this heading."""
        return next(row[1:] for row in self.rows if row[0] == head)


class Page(HTMLParser):
    """Parse `text`; `faults` says what is not balanced, not unique or not inert."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.classes: list[str] = []
        self.tables: list[Table] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.stack]
        self.faults += [f"{link} leads nowhere" for link in self.links if link[1:] not in self.ids]

    def table(self, caption: str) -> Table:
        """The table whose caption begins so."""
        return next(table for table in self.tables if table.caption.startswith(caption))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self._attribute(tag, name, value or "")
        if tag in VOID:
            return
        self.stack.append(tag)
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            self.cells = []
        elif tag in ("th", "td"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def _attribute(self, tag: str, name: str, value: str) -> None:
        if ":" in name:
            self.faults.append(f"<{tag} {name}> is of a namespace that HTML does not know")
        if name == "id":
            if value in self.ids:
                self.faults.append(f"id {value} is used twice")
            self.ids.add(value)
        elif name == "class":
            self.classes += value.split()
        if "://" in value:
            self.faults.append(f"<{tag} {name}={value}> names an address")
        if name.startswith("on"):
            self.faults.append(f"<{tag} {name}> runs a script")
        if name in FETCHES:
            if value.startswith("#"):
                self.links.append(value)
            else:
                self.faults.append(f"<{tag} {name}={value}> reads from elsewhere")

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.stack[-1:]} in line {self.getpos()[0]}")
            return
        self.stack.pop()
        if tag == "tr":
            table, cells = self.tables[-1], [" ".join(cell.split()) for cell in self.cells]
            if "thead" in self.stack:
                table.heads = cells
            else:
                table.rows.append(cells)

    def handle_data(self, data: str) -> None:
        if any(tag in self.stack for tag in HIDDEN):
            return
        self.text += data
        if "caption" in self.stack:
            self.tables[-1].caption += data
        elif "th" in self.stack or "td" in self.stack:
            self.cells[-1] += data
