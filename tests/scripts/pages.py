"""Pages of HTML, read as a browser would, and what is asked of a page that stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input", "br"}


class Tags(HTMLParser):
    """Every element with its attributes; refuses elements that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)


def parsed(text: str) -> Tags:
    """The elements and words of a page, all of whose elements are closed."""
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def assert_alone(text: str) -> Tags:
    """Check that a page loads nothing, runs nothing of others, and links to its own places."""
    tags = parsed(text)
    for tag, attributes in tags.found:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href"):
            given = attributes.get(name)
            assert given is None or given.startswith(("data:", "#")), (tag, given)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    policy = next(a for t, a in tags.found if t == "meta" and "http-equiv" in a)
    assert policy["content"].startswith("default-src 'none'")
    ids = [a["id"] for _, a in tags.found if "id" in a]
    assert len(set(ids)) == len(ids)
    links = {a["href"].removeprefix("#") for t, a in tags.found if t == "a"}
    assert links <= set(ids)
    return tags
