from penstock_operator.manifests.manifest import Manifest
from penstock_operator.reconcile.ingress_hosts import older_claimant


def pool(name: str, made: str, host: str | None = "a.example", uid: str = "") -> Manifest:
    ingress = {} if host is None else {"ingress": {"host": host}}
    return {"metadata": {"name": name, "uid": uid or name, "creationTimestamp": made}, "spec": ingress}


OLD, YOUNG = pool("z", "2026-01-01T00:00:00Z"), pool("a", "2026-01-02T00:00:00Z")


def test_the_older_pool_keeps_the_host_in_any_order() -> None:
    assert older_claimant(YOUNG, [OLD]) is OLD
    assert older_claimant(OLD, [YOUNG]) is None


def test_of_pools_created_in_one_second_the_lower_uid_keeps_the_host() -> None:
    first, second = pool("b", "2026-01-01T00:00:00Z", uid="1"), pool("a", "2026-01-01T00:00:00Z", uid="2")
    assert older_claimant(second, [first]) is first
    assert older_claimant(first, [second]) is None


def test_other_hosts_and_no_host_belong_to_no_pool() -> None:
    assert older_claimant(pool("c", "2026-01-03T00:00:00Z", host="b.example"), [OLD]) is None
    assert older_claimant(pool("c", "2026-01-03T00:00:00Z", host=None), [OLD]) is None


def test_a_pool_that_is_being_deleted_releases_its_host() -> None:
    deleted = pool("z", "2026-01-01T00:00:00Z")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-05T00:00:00Z"
    assert older_claimant(YOUNG, [deleted]) is None
