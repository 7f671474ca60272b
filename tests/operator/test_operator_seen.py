"""What watches told, in whatever order news arrives."""

from penstock_operator.cluster.kinds import CONFIG_MAP, POOL, Kind
from penstock_operator.cluster.seen import PoolKey, Seen
from penstock_operator.manifest import Manifest
from penstock_operator.names import POOL_LABEL

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
    seen.note(made(CONFIG_MAP, "newer-than-the-list", 9))
    seen.replace(CONFIG_MAP, None, [made(CONFIG_MAP, "there", 3)], version=5)
    assert [child["metadata"]["name"] for child in seen.children(KEY)] == ["newer-than-the-list", "there"]


def test_list_of_one_namespace_says_nothing_of_others() -> None:
    seen = Seen()
    seen.note(made(CONFIG_MAP, "chat-router", 1))
    seen.replace(CONFIG_MAP, "elsewhere", [], version=5)
    assert len(seen.children(KEY)) == 1
