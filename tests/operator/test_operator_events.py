"""Which changes have an Event."""

from typing import Any

from penstock_operator.manifests.manifest import Ref
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, Delete
from penstock_operator.reconcile.events import MAX_MESSAGE_CHARS, PoolEvent, event_manifest, pool_events


def status(degraded: str | None = None, ready: bool = True, **more: Any) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": str(ready), "reason": "Serving", "message": "2 of 2 replicas ready"},
        {
            "type": "Degraded",
            "status": str(degraded is not None),
            "reason": degraded or "AsWanted",
            "message": f"about {degraded}",
        },
    ]
    return {"conditions": conditions} | more


def reported(before: dict[str, Any], after: dict[str, Any], *actions: Action) -> list[tuple[str, str]]:
    return [(updates.type, updates.reason) for updates in pool_events(before, after, actions)]


def service(reason: ActionReason, *drift: str) -> Apply:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "team"}}
    return Apply(manifest, reason, drift)


def test_a_new_pool_has_an_event_when_it_is_ready_but_none_per_object() -> None:
    assert reported({}, status(ready=False), service(ActionReason.MISSING)) == []
    assert reported(status(ready=False), status()) == [("Normal", "Ready")]
    assert reported(status(), status()) == []
    assert reported({}, status()) == [("Normal", "Ready")]
    assert reported({}, status("GpuMissing", ready=False)) == [("Warning", "GpuMissing")]


def test_a_problem_and_its_end_have_one_event_each() -> None:
    assert reported(status(), status("GpuMissing")) == [("Warning", "GpuMissing")]
    assert reported(status("GpuMissing"), status("GpuMissing")) == []
    assert reported(status("GpuMissing"), status("ImageMissing")) == [("Warning", "ImageMissing")]
    assert reported(status("ImageMissing"), status()) == [("Normal", "Recovered")]


def test_a_correction_of_drift_has_an_event() -> None:
    (updates,) = pool_events(status(), status(), [service(ActionReason.DRIFTED, "spec.ports[80]")])
    assert updates == PoolEvent(
        "Normal", "DriftMended", 'Service "chat": spec.ports[80] restored to the pool\'s values'
    )
    (unnamed,) = pool_events(status(), status(), [service(ActionReason.DRIFTED)])
    assert unnamed.message == 'Service "chat": fields restored to the pool\'s values'
    assert reported(status(), status(), service(ActionReason.MISSING)) == [("Normal", "Made")]
    assert reported(status(), status(), service(ActionReason.CHANGED)) == []
    removed = Delete(Ref("v1", "Service", "team", "chat"), "uid")
    assert reported(status(), status(), removed) == [("Normal", "Removed")]


def test_scaling_has_an_event_with_its_reason() -> None:
    was, now = {"replicas": 2}, {"replicas": 4, "message": "60% was refused"}
    (updates,) = pool_events(status(autoscaling=was), status(autoscaling=now), ())
    assert updates == PoolEvent("Normal", "Scaled", "2 to 4 replicas: 60% was refused")
    assert reported(status(), status(autoscaling=now)) == []


def test_the_same_message_is_the_same_event() -> None:
    pool = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "chat", "namespace": "team", "uid": "1"},
    }
    first, again = (
        event_manifest(pool, PoolEvent("Warning", "GpuMissing", "no node"), at) for at in ("then", "now")
    )
    other = event_manifest(pool, PoolEvent("Warning", "GpuMissing", "another"), "now")
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert again["lastTimestamp"] == "now"


def test_an_event_names_its_pool_and_reporter_and_is_never_too_long() -> None:
    pool = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "chat", "namespace": "team", "uid": "1"},
    }
    event = event_manifest(pool, PoolEvent("Warning", "GpuMissing", "x" * 3000), "now")
    assert event["metadata"]["name"].startswith("chat.")
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "GpuMissing", 1)
    assert len(event["message"]) == MAX_MESSAGE_CHARS
    assert event["involvedObject"] == {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        **pool["metadata"],  # type: ignore[dict-item]
    }


def test_an_unchanged_number_of_replicas_has_no_event() -> None:
    same = status(autoscaling={"replicas": 2, "message": "quiet"})
    assert reported(same, status(autoscaling={"replicas": 2, "message": "busy"})) == []
