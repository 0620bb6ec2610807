"""The page of actions on machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.principals import Right
from app.auth.here import Here
from app.dashboard.actions.view import PATH, actions_page
from app.dashboard.ui.address import Address, QueryText, page_number
from app.dashboard.ui.csv_text import Table, csv_file
from app.lists.listing import PageRequest
from app.services.actions.listed import (
    PAGE,
    ActionsQuery,
    Show,
    actions_found,
    exported_actions,
)
from app.services.actions.policies import PolicyView, list_policies
from app.services.actions.reads import ActionRow

if TYPE_CHECKING:
    from app.dashboard.pages import Pages

# Longer words find no action, and no host has a longer name.
MAX_WORDS: Final = 300


def add_action_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the page of actions to the dashboard."""

    @routes.get(PATH)
    def actions_route(  # noqa: PLR0913 - what an address may ask for
        container: Here,
        *,
        q: QueryText = "",
        show: QueryText = "",
        kind: QueryText = "",
        host: QueryText = "",
        sort: QueryText = "",
        page: QueryText = "",
    ) -> Response:
        asked = _asked(q, show, kind, host)
        request = PageRequest(sort, page_number(page), PAGE)
        with pages.reading(container) as (tx, nav):
            found = actions_found(tx, container.settings, asked, request)
        given = {"show": show, "kind": kind, "host": asked.host, "q": asked.words}
        shown = actions_page(
            found,
            asked,
            Address(PATH, {**given, "sort": sort, "page": page}),
            scontrol=container.settings.slurm_scontrol is not None,
            administers=Right.ADMIN in container.principal.rights_in(container.project_id),
        )
        return pages.render("actions/page.html", nav, page=shown, now=found.now)

    @routes.get(f"{PATH}.csv")
    def actions_file_route(  # noqa: PLR0913 - what an address may ask for
        container: Here,
        *,
        q: QueryText = "",
        show: QueryText = "",
        kind: QueryText = "",
        host: QueryText = "",
        sort: QueryText = "",
    ) -> Response:
        with container.reading() as tx:
            rows = exported_actions(tx, _asked(q, show, kind, host), sort)
        return csv_file("paceline-actions.csv", Table.of(ActionRow, rows))

    @routes.get("/actions-policies.csv")
    def policies_file_route(container: Here) -> Response:
        with container.reading() as tx:
            found = list_policies(tx)
        names = ("kind", "title", "mode", "changed_at", "changed_by")
        return csv_file("paceline-action-policies.csv", Table.of(PolicyView, found, *names))


def _asked(words: str, show: str, kind: str, host: str) -> ActionsQuery:
    # The database takes no such character, and no name has it.
    texts = (text.replace("\x00", "")[:MAX_WORDS] for text in (kind, host, words.strip()))
    return ActionsQuery(Show(show) if show in tuple(Show) else Show.ALL, *texts)
