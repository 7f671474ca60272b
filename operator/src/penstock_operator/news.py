"""What of a look at a pool is worth an Event: what changed, compared with the status before.

Because the status before is the API server's, a restarted operator does not repeat itself. Actions become
news only where somebody might wonder: a drifted object put right, an orphan removed. Making a new pool's
objects is one line, not fifteen.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_operator.cluster.events import News
from penstock_operator.decide import Action, Apply, Delete, Reason
from penstock_operator.manifest import ref_of
from penstock_operator.status import condition


def news_of(before: Mapping[str, Any], after: Mapping[str, Any], actions: Sequence[Action]) -> Iterator[News]:
    """Everything to tell, in the order in which it is read best."""
    yield from _of_actions(before, actions)
    yield from _of_scaling(before, after)
    yield from _of_health(before, after)


def _of_actions(before: Mapping[str, Any], actions: Sequence[Action]) -> Iterator[News]:
    for action in actions:
        match action:
            case Apply(manifest, Reason.DRIFTED, drift):
                fields = ", ".join(drift) or "fields"
                yield News(
                    "Normal", "DriftMended", f"{ref_of(manifest)}: {fields} put back as the pool wants"
                )
            case Apply(manifest, Reason.MISSING) if before:
                yield News("Normal", "Made", f"{ref_of(manifest)} was missing and is made")
            case Delete(ref):
                yield News("Normal", "Removed", f"{ref} is no longer wanted and is removed")
            case _:
                pass


def _of_scaling(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[News]:
    was, now = before.get("autoscaling"), after.get("autoscaling")
    if was and now and was.get("replicas") != now["replicas"]:
        message = f"{was.get('replicas')} to {now['replicas']} replicas: {now['message']}"
        yield News("Normal", "Scaled", message)


def _of_health(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[News]:
    was, now = condition(before, "Degraded"), condition(after, "Degraded")
    if now is not None and now["status"] == "True":
        if was is None or (was["status"], was["reason"]) != ("True", now["reason"]):
            yield News("Warning", now["reason"], now["message"])
    elif was is not None and was["status"] == "True":
        yield News("Normal", "Recovered", f"no longer: {was['reason']}")
    ready_was, ready = condition(before, "Ready"), condition(after, "Ready")
    if ready is not None and ready["status"] == "True" and (ready_was or {}).get("status") != "True":
        yield News("Normal", "Ready", ready["message"])
