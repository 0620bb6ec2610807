"""Rules that a version before wrote change with it, but for what somebody changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from app.alerts.rules import DEFAULT_RULES, Rule, Selector, Threshold
from app.db import migrate
from app.services.alerts.store import rule_document

if TYPE_CHECKING:
    from sqlalchemy import Engine


def written_before(rule: Rule) -> dict[str, Any]:
    """Return a rule's document as programs wrote it before selectors left labels out."""
    document = rule_document(rule)
    del document["selector"]["except_labels"]
    return document


CHANGES = {
    "as it came": "document",
    "saved as it was": "document || CAST(:saved AS jsonb)",
    "another threshold": "jsonb_set(document, '{condition,at_least}', '1.2')",
    "turned off": """document || '{"enabled": false}'""",
}


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ("as it came", True),
        ("saved as it was", True),
        ("another threshold", False),
        ("turned off", False),
    ],
)
def test_the_slow_job_rule_reads_the_headline_unless_somebody_changed_it(
    engine: Engine, *, change: str, moved: bool
) -> None:
    rule = Rule(
        id=DEFAULT_RULES[0].id,
        name="Slow job",
        condition=Threshold("slowdown", at_least=1.1, clears_below=1.05),
        selector=DEFAULT_RULES[0].selector,
        escalation=DEFAULT_RULES[0].escalation,
    )
    migrate.upgrade(engine.url, "0006")
    with engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE alert_rule SET document = {CHANGES[change]} WHERE id = :id"  # noqa: S608 - ours
            ),
            {"id": rule.id}
            | ({"saved": json.dumps(written_before(rule))} if change.startswith("saved") else {}),
        )
    kinds = []
    for target in ("head", "0006", "head"):
        (migrate.downgrade if target == "0006" else migrate.upgrade)(engine.url, target)
        with engine.connect() as connection:
            kinds.append(
                connection.execute(
                    text("SELECT document->'condition'->>'kind' FROM alert_rule WHERE id = :id"),
                    {"id": rule.id},
                ).scalar_one()
            )
    now = "headline" if moved else "slowdown"
    assert kinds == [now, "slowdown", now]


@pytest.mark.parametrize(
    ("change", "left_out"),
    [("as it came", True), ("saved as it was", True), ("turned off", False)],
)
def test_no_data_leaves_the_demo_out_unless_somebody_changed_the_rule(
    engine: Engine, *, change: str, left_out: bool
) -> None:
    rule = DEFAULT_RULES[3]
    before = replace(rule, selector=Selector(importance=("normal", "high")))
    document = written_before(before)
    migrate.upgrade(engine.url, "0012")
    with engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE alert_rule SET document = {CHANGES[change]} WHERE id = :id"  # noqa: S608 - ours
            ),
            {"id": rule.id}
            | ({"saved": json.dumps(document)} if change.startswith("saved") else {}),
        )
    migrate.upgrade(engine.url, "head")
    with engine.connect() as connection:
        selector = connection.execute(
            text("SELECT document->'selector' FROM alert_rule WHERE id = :id"), {"id": rule.id}
        ).scalar_one()
    assert selector.get("except_labels") == ({"demo": "true"} if left_out else None)


def test_a_rule_of_the_new_kind_is_read_by_an_earlier_program(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO alert_rule (project_id, id, name, document)"
                " SELECT 1, gen_random_uuid(), 'Mine', document FROM alert_rule"
                " WHERE name = 'Slow job'"
            )
        )
    migrate.downgrade(engine.url, "0006")
    with engine.connect() as connection:
        kinds = connection.execute(
            text("SELECT document->'condition'->>'kind' FROM alert_rule")
        ).scalars()
        assert "headline" not in set(kinds)
