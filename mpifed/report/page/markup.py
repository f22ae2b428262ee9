"""Pieces of HTML: escaped text, tables, lists."""

from __future__ import annotations

import html
from collections.abc import Sequence


def text(words: object) -> str:
    """Return text for HTML, also within a quoted attribute."""
    return html.escape(str(words), quote=True)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1, caption: str = ""
) -> str:
    """Return a table."""

    def cell(index: int, content: str, tag: str, scope: str = "") -> str:
        number = ' class="n"' if index >= texts else ""
        return f"<{tag}{scope}{number}>{content}</{tag}>"

    head = "".join(cell(k, name, "th", ' scope="col"') for k, name in enumerate(header))
    body = []
    for row in rows:
        first, *rest = row
        cells = [cell(0, first, "th", ' scope="row"')]
        cells += [cell(k, content, "td") for k, content in enumerate(rest, 1)]
        body.append("<tr>" + "".join(cells) + "</tr>")
    about = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="table"><table>{about}<thead>'
        f"<tr>{head}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )


def details(summary: str, content: str) -> str:
    """Return content that opens by its summary, both HTML."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def section(name: str, title: str, content: str) -> str:
    """Return a section of the page; an empty one if it has no content."""
    heading = f"<h2>{text(title)}</h2>"
    return f'<section id="{name}">{heading}\n{content}\n</section>' if content else ""
