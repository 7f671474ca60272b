"""What watches told, in whatever order news arrives."""

from penstock_operator.cluster.cache import PoolKey, Seen
from penstock_operator.cluster.kinds import CONFIG_MAP, POOL, Kind
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import POOL_LABEL

KEY = PoolKey("team", "chat")


def made(kind: Kind, name: str, version: int, uid: str = "", pool: str = "chat") -> Manifest:
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


def test_children_are_their_pool_s() -> None:
    seen = Seen()
    seen.note(made(POOL, "chat", 1))
    seen.note(made(CONFIG_MAP, "chat-router", 2))
    seen.note(made(CONFIG_MAP, "code-router", 3, pool="code"))
    assert [child["metadata"]["name"] for child in seen.children(KEY)] == ["chat-router"]
    pool = seen.pool(KEY)
    assert pool is not None
    assert "managedFields" not in pool["metadata"]


def test_older_version_is_no_news() -> None:
    seen = Seen()
    assert seen.note(made(CONFIG_MAP, "chat-router", 9))
    assert not seen.note(made(CONFIG_MAP, "chat-router", 8))
    assert not seen.note(made(CONFIG_MAP, "chat-router", 9))
    assert seen.children(KEY)[0]["metadata"]["resourceVersion"] == "9"


def test_late_news_does_not_bring_back_what_is_gone() -> None:
    seen = Seen()
    seen.note(made(CONFIG_MAP, "chat-router", 1))
    assert seen.forget(made(CONFIG_MAP, "chat-router", 3))
    assert not seen.note(made(CONFIG_MAP, "chat-router", 2))
    assert seen.children(KEY) == ()


def test_namesake_made_since_is_not_forgotten_with_its_predecessor() -> None:
    seen = Seen()
    seen.note(made(CONFIG_MAP, "chat-router", 5, uid="new"))
    assert not seen.forget(made(CONFIG_MAP, "chat-router", 4, uid="old"))
    assert len(seen.children(KEY)) == 1


def test_list_tells_what_a_watch_has_lost() -> None:
    seen = Seen()
    seen.note(made(CONFIG_MAP, "gone", 1))
    asked = seen.mark(CONFIG_MAP)
    seen.note(made(CONFIG_MAP, "newer-than-the-list", 9))
    seen.replace(CONFIG_MAP, None, [made(CONFIG_MAP, "there", 3)], 5, asked)
    assert names(seen) == ["newer-than-the-list", "there"]


def test_what_was_heard_while_a_list_was_under_way_stays() -> None:
    seen = Seen()
    seen.note(made(CONFIG_MAP, "changes", 3))
    seen.note(made(CONFIG_MAP, "goes", 4))
    asked = seen.mark(CONFIG_MAP)
    seen.note(made(CONFIG_MAP, "changes", 7))
    seen.forget(made(CONFIG_MAP, "goes", 8))
    seen.replace(CONFIG_MAP, None, [made(CONFIG_MAP, "changes", 3), made(CONFIG_MAP, "goes", 4)], 6, asked)
    assert names(seen) == ["changes"]
    assert seen.children(KEY)[0]["metadata"]["resourceVersion"] == "7"
    assert not seen.behind


def restored() -> Seen:
    """What is known after etcd came back from a backup that is older than all this: but for the list."""
    seen = Seen()
    seen.note(made(POOL, "chat", 800))
    seen.note(made(CONFIG_MAP, "changed-since", 900))
    seen.note(made(CONFIG_MAP, "made-since", 950))
    seen.note(made(CONFIG_MAP, "deleted-since", 700))
    seen.forget(made(CONFIG_MAP, "deleted-since", 960))
    return seen


def test_list_of_a_restored_server_is_believed() -> None:
    seen = restored()
    listed = [made(CONFIG_MAP, "changed-since", 600), made(CONFIG_MAP, "deleted-since", 500)]
    seen.replace(CONFIG_MAP, None, listed, 650, seen.mark(CONFIG_MAP))
    told = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in seen.children(KEY)}
    assert told == {"changed-since": "600", "deleted-since": "500"}
    assert seen.note(made(CONFIG_MAP, "changed-since", 651))
    assert seen.note(made(CONFIG_MAP, "deleted-since", 652))


def test_list_of_a_restored_server_is_believed_even_if_it_has_overtaken_what_is_known() -> None:
    seen = restored()
    seen.replace(POOL, None, [made(POOL, "chat", 500)], 2000, seen.mark(POOL))
    pool = seen.pool(KEY)
    assert pool is not None
    assert pool["metadata"]["resourceVersion"] == "500"


def test_watches_are_deaf_until_a_restored_server_is_where_it_was() -> None:
    seen = restored()
    for version, behind in ((650, True), (900, True), (950, False)):
        seen.replace(CONFIG_MAP, None, [], version, seen.mark(CONFIG_MAP))
        assert seen.behind is behind


def names(seen: Seen) -> list[str]:
    return [child["metadata"]["name"] for child in seen.children(KEY)]


def test_list_of_one_namespace_says_nothing_of_others() -> None:
    seen = Seen()
    seen.note(made(CONFIG_MAP, "chat-router", 1))
    seen.replace(CONFIG_MAP, "elsewhere", [], 5, seen.mark(CONFIG_MAP))
    assert len(seen.children(KEY)) == 1
