"""The chart grants exactly the permissions of the operator's table."""

from pathlib import Path
from typing import Any

import yaml
from penstock_operator.cluster.kinds import WATCHED
from penstock_operator.cluster.permissions import CLUSTER, LEASE, MANAGE, POOLS, READ, manifest_rules

TEMPLATE = Path(__file__).resolve().parents[2] / "charts/penstock/templates/rbac.yaml"


def rules_after(line: str) -> Any:
    """Return the list of rules that follows a line of the template."""
    lines = TEMPLATE.read_text().splitlines()
    start = next(i for i, text in enumerate(lines) if text.startswith(line)) + 1
    block: list[str] = []
    for text in lines[start:]:
        if not text.startswith(("- ", "  ")):
            break
        block.append(text)
    return yaml.safe_load("\n".join(block))


def key(rule: dict[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((name, tuple(sorted(values))) for name, values in rule.items()))


def test_the_chart_grants_exactly_the_operators_permissions() -> None:
    granted = rules_after('{{- define "penstock.rules"')
    assert sorted(map(key, granted)) == sorted(map(key, manifest_rules(POOLS)))
    assert sorted(map(key, rules_after('{{ include "penstock.rules" . }}'))) == sorted(
        map(key, manifest_rules(CLUSTER))
    )
    assert sorted(map(key, rules_after("rules:"))) == sorted(map(key, manifest_rules(LEASE)))


def test_every_created_kind_may_be_created_and_watched() -> None:
    verbs = {(rule.group, name): rule.verbs for rule in POOLS for name in rule.resources}
    for kind in WATCHED:
        assert verbs[kind.group, kind.plural] in (MANAGE, READ), kind


def test_secrets_are_never_listed() -> None:
    assert [rule for rule in POOLS if "secrets" in rule.resources and {"list", "watch"} & {*rule.verbs}] == []
