"""Small HTML fragments: table cells, and macros that templates call by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from markupsafe import Markup, escape

from app.web.format import heat_color, times
from app.web.links import host_url
from app.web.parts import Sparkline, StateLabel

NOTHING: Final = Markup()
_HATCHED: Final = Markup(
    '<svg class="swatch" width="10" height="10" aria-hidden="true"><use href="#g-hatched"/></svg>'
)


def element(tag: str, *content: object, **attributes: str | bool) -> Markup:
    """Return an HTML element with its content; text is escaped, markup is not.

    Parameters
    ----------
    **attributes : str or bool
        Empty and false attributes are left out; in a name a final underscore is removed, and other
        underscores become hyphens.

    Examples
    --------
    >>> element("a", "a < b", href="/x", class_="plain", title="")
    Markup('<a href="/x" class="plain">a &lt; b</a>')
    """
    # Built as a string, because `Markup.format` takes ten times as long and a page has thousands of
    # elements.
    given = "".join(
        f" {key}" if value is True else f' {key}="{escape(value)}"'
        for key, value in (
            (name.removesuffix("_").replace("_", "-"), value) for name, value in attributes.items()
        )
        if value not in ("", False)
    )
    return Markup(f"<{tag}{given}>{''.join(map(escape, content))}</{tag}>")  # noqa: S704 - escaped here


def join(parts: Iterable[object]) -> Markup:
    """Return the concatenation of parts."""
    return NOTHING.join(parts)  # type: ignore[arg-type]


def link(url: str, *content: object, plain: bool = False, title: str = "") -> Markup:
    """Return a link; a plain link looks like the surrounding text."""
    return element("a", *content, class_="plain" if plain else "", href=url, title=title)


def muted(text: object) -> Markup:
    """Return text in the muted color."""
    return element("span", text, class_="muted")


def note(*content: object) -> Markup:
    """Return a remark in a smaller font."""
    return element("span", *content, class_="note")


def narrow(*parts: str) -> Markup:
    """Return the text that replaces hidden columns on a narrow screen."""
    return element("span", " · ".join(filter(None, parts)), class_="only")


def glyph(name: str, word: str, *, quiet: bool = False) -> Markup:
    """Return a word with its glyph before it."""
    muted = " muted" if quiet else ""
    return Markup(  # noqa: S704 - escaped here
        f'<span class="state{muted}"><svg aria-hidden="true">'
        f'<use href="#g-{escape(name)}"/></svg>{escape(word)}</span>'
    )


def state(label: StateLabel) -> Markup:
    """Return a state as its glyph and its label."""
    return glyph(label.glyph, label.word, quiet=label.quiet)


def severity(value: str) -> Markup:
    """Return a severity in the color of its CSS class."""
    return element("span", value, class_=f"sev {value}")


def swatch(color: str) -> Markup:
    """Return a small square in a color; hatched if the color is empty."""
    if not color:
        return _HATCHED
    return Markup(  # noqa: S704 - escaped here
        '<svg class="swatch" width="10" height="10" aria-hidden="true">'
        f'<rect width="10" height="10" rx="1" fill="{escape(color)}"/></svg>'
    )


def bar(share: float, kind: str = "", mark: float | None = None) -> Markup:
    """Return a horizontal bar of a length in per cent.

    Parameters
    ----------
    kind : str
        CSS class of the bar's color.
    mark : float, optional
        Position of a mark on the bar, in per cent.
    """
    own = f' class="{escape(kind)}"' if kind else ""
    middle = "" if mark is None else f'<rect class="mid" x="{mark:.2f}" width="1.5" height="8"/>'
    return Markup(  # noqa: S704 - numbers, and escaped here
        '<svg class="bar" height="8" preserveAspectRatio="none" viewBox="0 0 100 8"'
        f' aria-hidden="true"><rect width="{share:.2f}" height="8"{own}/>{middle}</svg>'
    )


def slowdown(value: float | None) -> Markup:
    """Return a slowdown, with a square in its color on the fixed scale before it."""
    if value is None:
        return swatch("") + "none"
    return swatch(heat_color(value)) + times(value)


def spark(value: Sparkline | None) -> Markup:
    """Return a sparkline as SVG."""
    if value is None:
        return NOTHING
    line = Markup('<path d="{}" fill="none" stroke="var(--text-2)" stroke-width="1.25"/>')
    parts = [
        *(
            Markup('<rect x="{}" y="4" width="{}" height="12" fill="url(#hatch)"/>').format(*gap)
            for gap in value.gaps
        ),
        *(line.format(path) for path in value.lines),
        *(Markup('<path d="{}" fill="var(--text-2)"/>').format(path) for path in value.above),
    ]
    if value.dot:
        parts.append(
            Markup(
                '<circle cx="{}" cy="{}" r="2.5" fill="{}" stroke="var(--text-2)"'
                ' stroke-width=".75"/>'
            ).format(*value.dot)
        )
    return Markup(
        '<svg class="spark" width="112" height="18" viewBox="0 0 112 18" role="img"'
        ' aria-label="{}"><line x1="0" x2="112" y1="16" y2="16" stroke="var(--line-strong)"/>{}'
        "</svg>"
    ).format(value.label, join(parts))


def where(place: str, host: str = "") -> Markup:
    """Return a place, whose first part links to its host if the host is known."""
    first, comma, rest = place.partition(", ")
    shown = element("a", first, class_="within", href=host_url(host)) if host else first
    return join((shown, comma, rest))
