"""The content of a page, read from its HTML as a person would: words, tables, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Element:
    """An HTML element with its children, in order."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the words of the element; the texts of its children are separated by spaces."""
        return " ".join(self._joined().split())

    def all(self, tag: str, name: str | None = None, **attributes: str) -> list[Element]:
        """Return the descendants with a tag, a class and these attributes."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            found
            for found in self._within()
            if found.tag == tag
            and (name is None or name in found.attributes.get("class", "").split())
            and all(found.attributes.get(key) == value for key, value in wanted.items())
        ]

    def one(self, tag: str, name: str | None = None, **attributes: str) -> Element:
        """Return the only descendant with a tag, a class and these attributes."""
        found = self.all(tag, name, **attributes)
        assert len(found) == 1, f"{len(found)} of <{tag} class={name} {attributes}>"
        return found[0]

    def rows(self, name: str | None = None) -> list[list[str]]:
        """Return the words of each cell in the body of a table."""
        [body] = self.one("table", name).all("tbody")
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for row in body.all("tr")
        ]

    def columns(self, name: str | None = None) -> list[str]:
        """Return the headings of a table."""
        return [heading.text for heading in self.one("table", name).one("thead").all("th")]

    def _joined(self) -> str:
        if self.tag in ("script", "svg"):
            return ""
        return " ".join(part if isinstance(part, str) else part._joined() for part in self.children)

    def _within(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child._within()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        while len(self.open) > 1 and self.open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(text: str) -> Element:
    """Return the root element of a page."""
    reader = _Reader()
    reader.feed(text)
    return reader.open[0]
