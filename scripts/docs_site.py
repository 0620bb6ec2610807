"""Hooks of MkDocs that adapt the pages of docs/ for the site.

The pages are also read in the repository, where links lead to other files and an image cannot
depend on a theme; changes that only the site needs are made here.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

from app.analysis.mitigation.tensor.document import MitigationDocument
from app.analysis.planning.document import PlanDocument, SimulatedIteration
from app.analysis.planning.job.document import JobDocument
from app.analysis.reference import Reference
from app.analysis.report.document import Report

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

STATIC: Final = Path(__file__).parents[1] / "frontend" / "static"
# Files of the dashboard that the site uses.
SHARED: Final = {
    "assets/tokens.css": STATIC / "css" / "tokens.css",
    "assets/theme.js": STATIC / "js" / "theme.js",
    "assets/icon.svg": STATIC / "img" / "icon.svg",
}
# Files for search and search engines that MkDocs adds and no page uses.
UNUSED: Final = (
    *("search/main.js", "search/worker.js", "search/lunr.js"),
    *("sitemap.xml", "sitemap.xml.gz"),
)

# Pages with a list of a document's fields at their end, generated from its types.
REFERENCES: Final = {
    "report.md": Reference((Report,)),
    "plan.md": Reference((PlanDocument, JobDocument, SimulatedIteration)),
    "mitigation.md": Reference((MitigationDocument,)),
}

# Links to files outside of docs/, which the site does not contain.
_OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
# Elements that may be wider than the page: they scroll, so the keyboard must be able to reach them.
_TABLE: Final = re.compile(r"<table>.*?</table>", re.DOTALL)
_SCROLLED: Final = '<div class="scroll" role="region" aria-label="Table {}" tabindex="0">{}</div>'


_TERM: Final = re.compile(r"<tr>\s*<td>(.*?)</td>")


def _anchor(term: str) -> str:
    """Return the anchor of a term, which app/web/terms.py links to."""
    first = re.split(r", | \(", re.sub("<[^>]+>", "", term))[0]
    return re.sub(r"\W+", "-", first.lower()).strip("-")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that the site shares with the dashboard."""
    for place, source in SHARED.items():
        files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - of MkDocs
    """Add the generated fields, and replace links out of the documentation by their text."""
    reference = REFERENCES.get(page.file.src_uri)
    if reference is not None:
        # The file's last paragraph points readers of the repository to the site.
        words = markdown.rstrip().rpartition("\n\n")[0]
        markdown = f"{words}\n\n{reference.tables()}"
    return _OUTSIDE.sub(r"\1", markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - of MkDocs
    """Make wide tables and code scrollable by the keyboard, and give terms an anchor."""
    if page.file.src_uri == "glossary.md":
        html = _TERM.sub(lambda match: f'<tr>\n<td id="{_anchor(match[1])}">{match[1]}</td>', html)
    numbers = itertools.count(1)
    html = _TABLE.sub(lambda match: _SCROLLED.format(next(numbers), match[0]), html)
    return html.replace("<pre>", '<pre tabindex="0">')


def on_post_build(config: MkDocsConfig) -> None:
    """Remove unused files."""
    for name in UNUSED:
        (Path(config.site_dir) / name).unlink(missing_ok=True)
