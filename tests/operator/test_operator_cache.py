"""The cache of watched objects, for any order of events."""

import pytest
from penstock_operator.cluster.cache import Cache, PoolKey
from penstock_operator.cluster.kinds import CONFIG_MAP, POOL, ResourceKind
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import POOL_LABEL

KEY = PoolKey("team", "chat")


def made(kind: ResourceKind, name: str, version: int, uid: str = "", pool: str = "chat") -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or name,
            "resourceVersion": str(version),
            "labels": {POOL_LABEL: pool},
            "managedFields": [{"manager": "penstock-operator"}],
        },
    }


def test_children_belong_to_their_pool() -> None:
    cache = Cache()
    cache.update(made(POOL, "chat", 1))
    cache.update(made(CONFIG_MAP, "chat-router", 2))
    cache.update(made(CONFIG_MAP, "code-router", 3, pool="code"))
    assert [child["metadata"]["name"] for child in cache.children(KEY)] == ["chat-router"]
    pool = cache.pool(KEY)
    assert pool is not None
    assert "managedFields" not in pool["metadata"]


def test_an_older_version_is_not_a_change() -> None:
    cache = Cache()
    assert cache.update(made(CONFIG_MAP, "chat-router", 9))
    assert not cache.update(made(CONFIG_MAP, "chat-router", 8))
    assert not cache.update(made(CONFIG_MAP, "chat-router", 9))
    assert cache.children(KEY)[0]["metadata"]["resourceVersion"] == "9"


def test_a_late_event_does_not_restore_a_deleted_object() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "chat-router", 1))
    assert cache.remove(made(CONFIG_MAP, "chat-router", 3))
    assert not cache.update(made(CONFIG_MAP, "chat-router", 2))
    assert cache.children(KEY) == ()


def test_a_new_object_of_the_same_name_is_not_removed_with_its_predecessor() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "chat-router", 5, uid="new"))
    assert not cache.remove(made(CONFIG_MAP, "chat-router", 4, uid="old"))
    assert len(cache.children(KEY)) == 1


def test_a_list_adds_and_removes_objects_whose_changes_the_watch_missed() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "gone", 1))
    requested = cache.state(CONFIG_MAP)
    cache.update(made(CONFIG_MAP, "newer-than-the-list", 9))
    cache.replace(CONFIG_MAP, None, [made(CONFIG_MAP, "there", 3)], 5, requested)
    assert names(cache) == ["newer-than-the-list", "there"]


def test_events_received_during_a_list_are_kept() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "changes", 3))
    cache.update(made(CONFIG_MAP, "goes", 4))
    requested = cache.state(CONFIG_MAP)
    cache.update(made(CONFIG_MAP, "changes", 7))
    cache.remove(made(CONFIG_MAP, "goes", 8))
    cache.replace(
        CONFIG_MAP, None, [made(CONFIG_MAP, "changes", 3), made(CONFIG_MAP, "goes", 4)], 6, requested
    )
    assert names(cache) == ["changes"]
    assert cache.children(KEY)[0]["metadata"]["resourceVersion"] == "7"
    assert not cache.stale


def restored() -> Cache:
    """Return the cache after etcd was restored from an older backup, before the next list."""
    cache = Cache()
    cache.update(made(POOL, "chat", 800))
    cache.update(made(CONFIG_MAP, "changed-since", 900))
    cache.update(made(CONFIG_MAP, "made-since", 950))
    cache.update(made(CONFIG_MAP, "deleted-since", 700))
    cache.remove(made(CONFIG_MAP, "deleted-since", 960))
    return cache


def test_the_list_of_a_restored_server_is_accepted() -> None:
    cache = restored()
    listed = [made(CONFIG_MAP, "changed-since", 600), made(CONFIG_MAP, "deleted-since", 500)]
    cache.replace(CONFIG_MAP, None, listed, 650, cache.state(CONFIG_MAP))
    reported = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in cache.children(KEY)}
    assert reported == {"changed-since": "600", "deleted-since": "500"}
    assert cache.update(made(CONFIG_MAP, "changed-since", 651))
    assert cache.update(made(CONFIG_MAP, "deleted-since", 652))


def test_the_list_of_a_restored_server_is_accepted_also_with_newer_versions() -> None:
    cache = restored()
    cache.replace(POOL, None, [made(POOL, "chat", 500)], 2000, cache.state(POOL))
    pool = cache.pool(KEY)
    assert pool is not None
    assert pool["metadata"]["resourceVersion"] == "500"


def test_watches_are_unreliable_until_a_restored_server_has_caught_up() -> None:
    cache = restored()
    for version, stale in ((650, True), (900, True), (950, False)):
        cache.replace(CONFIG_MAP, None, [], version, cache.state(CONFIG_MAP))
        assert cache.stale is stale


def names(cache: Cache) -> list[str]:
    return [child["metadata"]["name"] for child in cache.children(KEY)]


def test_a_list_of_one_namespace_changes_no_other() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "chat-router", 1))
    cache.replace(CONFIG_MAP, "elsewhere", [], 5, cache.state(CONFIG_MAP))
    assert len(cache.children(KEY)) == 1


def test_a_deleted_object_stays_deleted_even_if_an_older_list_has_it() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "goes", 4))
    requested = cache.state(CONFIG_MAP)
    cache.remove(made(CONFIG_MAP, "goes", 8))
    cache.replace(CONFIG_MAP, None, [made(CONFIG_MAP, "goes", 4)], 6, requested)
    assert names(cache) == []


def test_a_list_requested_after_the_last_event_is_accepted() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "chat-router", 900))
    cache.replace(CONFIG_MAP, None, [made(CONFIG_MAP, "chat-router", 600)], 650, cache.state(CONFIG_MAP))
    assert cache.children(KEY)[0]["metadata"]["resourceVersion"] == "600"


def test_the_first_complete_list_has_all_objects() -> None:
    cache = Cache()
    cache.replace(
        CONFIG_MAP, None, [made(CONFIG_MAP, "b", 2), made(CONFIG_MAP, "a", 1)], 5, cache.state(CONFIG_MAP)
    )
    cache.replace(POOL, None, [made(POOL, "chat", 3), made(POOL, "code", 4)], 5, cache.state(POOL))
    assert names(cache) == ["a", "b"]
    assert [pool["metadata"]["name"] for pool in cache.pools()] == ["chat", "code"]
    assert not cache.stale


def test_an_object_belongs_to_the_pool_of_its_label() -> None:
    cache = Cache()
    cache.update(made(CONFIG_MAP, "settings", 1))
    cache.update(made(CONFIG_MAP, "settings", 2, pool="code"))
    assert cache.children(KEY) == ()
    assert len(cache.children(PoolKey("team", "code"))) == 1


def test_the_deletion_of_an_unknown_object_is_not_a_change() -> None:
    cache = Cache()
    assert not cache.remove(made(CONFIG_MAP, "chat-router", 1))
    cache.update(made(CONFIG_MAP, "another", 2))
    assert cache.remove(made(CONFIG_MAP, "another", 3))
    assert not cache.remove(made(CONFIG_MAP, "another", 3))


def test_only_the_latest_deletions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_operator.cluster.cache.MAX_DELETED_UIDS", 2)
    cache = Cache()
    for name in ("first", "second", "third"):
        cache.remove(made(CONFIG_MAP, name, 1))
    late = {name: cache.update(made(CONFIG_MAP, name, 1)) for name in ("first", "second", "third")}
    assert late == {"first": True, "second": False, "third": False}


def test_a_pool_is_identified_by_its_namespace_and_name() -> None:
    assert str(KEY) == "team/chat"
