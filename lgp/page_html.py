"""The report page's parts as HTML: sections of sentences, drawings and tables.

In: sections. Out: one HTML text, everything from files escaped. What stands in it is `lgp.page`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lgp.page_columns import Column
from lgp.page_style import STYLE

Record = Mapping[str, Any]
MARKS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is fetched, whatever a run's files hold."""


@dataclass(frozen=True)
class Table:
    """A table of the page, with the file it is kept in."""

    name: str
    caption: str
    columns: Sequence[Column]
    records: Sequence[Record]


@dataclass(frozen=True)
class Drawing:
    """Panels side by side under one legend.

    Attributes:
        panels: (title, SVG). styles: colour and marker of each name in the legend.
    """

    name: str
    text: str
    styles: Mapping[str, tuple[str, str]]
    panels: Sequence[tuple[str, str]]
    exact: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, what is said under it, and its drawings and tables."""

    anchor: str
    title: str
    lines: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()


def html_page(title: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    links = " ".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections)
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><header><h1>{escape(title)}</h1><nav>{links}</nav></header>\n<main>\n{body}\n"
        "</main></body></html>\n"
    )


def _section(section: Section) -> str:
    link = f'<a class="here" href="#{section.anchor}" aria-label="link to this">#</a>'
    parts = [f'<section id="{section.anchor}"><h2>{escape(section.title)} {link}</h2>']
    if section.lines:
        parts.append("<ul>" + "".join(f"<li>{escape(x)}</li>" for x in section.lines) + "</ul>")
    parts += [_drawing(drawing) for drawing in section.drawings]
    parts += [_table(table) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _drawing(drawing: Drawing) -> str:
    keys = "".join(
        f'<span class="key"><i style="color:{color}">{MARKS.get(marker, "●")}</i> {escape(name)}'
        "</span>"
        for name, (color, marker) in drawing.styles.items()
    ).replace("color:#000000", "color:currentColor")
    if drawing.exact:
        keys += '<span class="key"><i>- -</i> exact kNN</span>'
    panels = []
    for title, text in drawing.panels:
        label = escape(f"{drawing.text} {title}".strip())
        shown = text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        head = f"<h3>{escape(title)}</h3>" if title else ""
        panels.append(f'<div class="panel">{head}{shown}</div>')
    return (
        f'<figure id="{escape(drawing.name)}"><figcaption>{escape(drawing.text)}<br>{keys}'
        f'</figcaption><div class="grid">{"".join(panels)}</div></figure>'
    )


def _number_class(form: str) -> str:
    return ' class="n"' if form else ""


def _table(table: Table) -> str:
    heads = "".join(
        f'<th scope="col"{_number_class(form)}>{escape(head)}</th>'
        for _, head, form in table.columns
    )
    rows = []
    for record in table.records:
        cells = "".join(
            f"<td{_number_class(form)}>{escape(cell_text(record.get(key), form))}</td>"
            for key, _, form in table.columns
        )
        rows.append(f"<tr>{cells}</tr>")
    text = (
        f'<div class="scroll" tabindex="0"><table id="table-{escape(table.name)}"><caption>'
        f"{escape(table.caption)}</caption><thead><tr>{heads}</tr></thead><tbody>"
        f"{''.join(rows)}</tbody></table></div>"
    )
    if len(rows) <= 40:
        return text
    return f"<details><summary>{escape(table.caption)}: {len(rows)} lines</summary>{text}</details>"


def cell_text(value: Any, form: str) -> str:
    """A value as a table shows it: a number by its format, nothing as a dash."""
    if value is None:
        return "-"
    return format(value, form) if form and isinstance(value, int | float) else str(value)
