"""The operator's kopf handlers: what they watch, and how the operator starts and ends."""

import asyncio
from typing import Any

import kopf
import pytest
from penstock_operator import handlers
from penstock_operator.cluster.kinds import POOL, WATCHED
from penstock_operator.controller import OWN
from penstock_operator.options import OperatorOptions, read_options
from penstock_operator.settings import OperatorSettings, read_settings
from penstock_runtime.serving import StartError
from test_operator_settings import LEAST

HANDLERS: Any = handlers
"""kopf calls them with what they name of its arguments."""


class Operator:
    """A substitute for the operator. refusal: why it does not start."""

    refusal: str | None = None

    def __init__(self, settings: OperatorSettings, options: OperatorOptions) -> None:
        self.settings, self.options = settings, options
        self.life: list[object] = []

    async def start(self) -> None:
        if self.refusal:
            raise StartError(self.refusal)
        self.life.append("started")

    async def stop(self) -> None:
        self.life.append("stopped")

    def handle_event(self, manifest: dict[str, Any], gone: bool) -> None:
        self.life.append((manifest, gone))


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> type[Operator]:
    monkeypatch.setattr(handlers, "Operator", Operator)
    monkeypatch.setattr(Operator, "refusal", None)
    return Operator


def started(memo: kopf.Memo) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    asyncio.run(HANDLERS.start(settings, memo))
    return settings


def of_command(namespaces: tuple[str, ...] = ()) -> kopf.Memo:
    options = OperatorOptions(namespaces=namespaces, identity="me")
    return kopf.Memo(settings=read_settings(LEAST), options=options)


def test_kopf_posts_no_events_stores_no_state_and_has_no_peers() -> None:
    settings = started(of_command())
    assert not settings.posting.enabled
    assert settings.peering.standalone
    storage = settings.persistence.diffbase_storage
    assert storage.build(body=kopf.Body({"spec": {"a": 1}})) == {}
    assert storage.fetch(body=kopf.Body({})) is None
    patch = kopf.Patch()
    storage.store(body=kopf.Body({}), patch=patch, essence=kopf.BodyEssence({"spec": {"a": 1}}))
    assert not patch


def test_broken_connections_end_before_a_watch_is_renewed() -> None:
    settings = started(of_command())
    assert settings.watching.server_timeout == handlers.WATCH_TIMEOUT_S
    assert settings.watching.connect_timeout == handlers.CONNECT_TIMEOUT_S
    assert settings.networking.request_timeout == handlers.REQUEST_TIMEOUT_S
    assert settings.process.ultimate_exiting_timeout == handlers.EXIT_TIMEOUT_S


def test_only_the_operators_own_objects_are_watched_and_every_pool() -> None:
    selectors: dict[Any, str] = {**started(of_command()).watching.label_selectors}
    assert {(of.group, of.version, of.any_name): labels for of, labels in selectors.items()} == {
        (kind.group, kind.version, kind.plural): OWN for kind in WATCHED
    }
    registered = kopf.get_default_registry()._watching.get_all_handlers()
    assert {
        (each.selector.group, each.selector.version, each.selector.any_name)
        for each in registered
        if each.fn is handlers.changed and each.selector is not None
    } == {(kind.group, kind.version, kind.plural) for kind in (POOL, *WATCHED)}


@pytest.mark.parametrize("namespaces", [(), ("a", "b")])
def test_the_cluster_is_scanned_only_by_an_operator_of_all_namespaces(namespaces: tuple[str, ...]) -> None:
    memo = of_command(namespaces)
    assert started(memo).scanning.disabled is bool(namespaces)
    assert (memo.operator.options, memo.operator.settings) == (memo.options, memo.settings)
    assert memo.operator.life == ["started"]


def test_without_a_command_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**LEAST, "PENSTOCK_NAMESPACES": "team", "POD_NAME": "me"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    memo = kopf.Memo()
    assert started(memo).scanning.disabled
    assert memo.operator.options == read_options(environment)
    assert memo.operator.settings == read_settings(environment)


def test_an_operator_that_cannot_start_logs_the_reason(operator: type[Operator]) -> None:
    operator.refusal = "no API server is known"
    memo = of_command()
    with pytest.raises(kopf.PermanentError, match="no API server is known"):
        started(memo)
    assert memo.start_error == "no API server is known"


def test_watch_events_reach_the_operator() -> None:
    memo, body = of_command(), {"kind": "Pod"}
    started(memo)
    for type_ in (None, "ADDED", "MODIFIED", "DELETED"):
        asyncio.run(HANDLERS.changed({"type": type_, "object": body}, memo))
    assert memo.operator.life == ["started", *[(body, False)] * 3, (body, True)]


def test_an_operator_is_stopped_only_if_it_was_started() -> None:
    memo = of_command()
    asyncio.run(HANDLERS.stop(memo))
    started(memo)
    asyncio.run(HANDLERS.stop(memo))
    assert memo.operator.life == ["started", "stopped"]
