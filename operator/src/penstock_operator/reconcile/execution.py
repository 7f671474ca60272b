"""Executes the actions of a reconciliation, object by object.

An object that the API server refuses does not keep the others from being applied: a missing ServiceMonitor
CRD must not keep a pool from serving. Refusals become problems of the status, and the pool is reconciled
again soon. If the API server does not answer, the reconciliation ends: further calls would fail as well.
"""

from collections.abc import Iterable, Sequence

import structlog

from penstock_operator.cluster.api_client import Api, ApiRefused
from penstock_operator.cluster.cache import Cache
from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.pods import component_of
from penstock_operator.metrics import Metrics
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, Conflict, Delete, LeftOut
from penstock_operator.reconcile.drift import differences
from penstock_operator.status.diagnosis import Cause, Problem

log = structlog.get_logger()


async def carry_out(
    actions: Iterable[Action], api: Api, cache: Cache, metrics: Metrics
) -> tuple[Problem, ...]:
    """Do it all, in order. What could not be done. Raises ApiUnreachable."""
    problems: list[Problem] = []
    for action in actions:
        try:
            problem = await _do(action, api, cache)
        except ApiRefused as refused:
            if refused.leaving:
                break
            problem = _refusal(action, refused)
        kind, reason = ref_in(action).kind, action.reason.value
        metrics.actions.labels(kind, reason, "refused" if problem else "done").inc()
        of = {"namespace": ref_in(action).namespace, "what": str(ref_in(action)), "reason": reason}
        if problem is None:
            log.info("acted", **of)
        else:
            log.warning("not done", **of, error=problem.message)
            problems.append(problem)
    return tuple(problems)


def ref_in(action: Action) -> Ref:
    """The object that an action is about."""
    return ref_of(action.manifest) if isinstance(action, Apply | LeftOut) else action.ref


async def _do(action: Action, api: Api, cache: Cache) -> Problem | None:
    match action:
        case Apply(manifest, reason):
            made = (
                await _restore(manifest, api) if reason is ActionReason.DRIFTED else await api.apply(manifest)
            )
            problem = not_kept(manifest, made)
            if watched(manifest):
                cache.update(made)
            return problem
        case Delete(ref, uid):
            await api.delete(ref, uid)
        case Conflict(_, message):
            return Problem(Cause.NAME_TAKEN, message)
        case LeftOut(manifest, fields):
            return _left_out(manifest, fields)
    return None


async def _restore(manifest: Manifest, api: Api) -> Manifest:
    """Apply; where what somebody put beside ours cannot be there together with it, put ours in its place.

    Server-side apply never removes an entry that another wrote, not even where both together are invalid.
    """
    try:
        return await api.apply(manifest)
    except ApiRefused as refused:
        if refused.reason != "Invalid":
            raise
        await api.overwrite(manifest)
        return await api.apply(manifest)


def not_kept(manifest: Manifest, made: Manifest) -> Problem | None:
    """Return the fields of a manifest that the API server left out of what it made, as a problem.

    Values that admission changed are none: they are logged.
    """
    differs = differences(manifest, made)
    changed = [each.path for each in differs if not each.absent]
    if changed:
        log.info("changed by admission", what=str(ref_of(manifest)), fields=changed)
    left_out = [each.path for each in differs if each.absent]
    return _left_out(manifest, left_out) if left_out else None


def _left_out(manifest: Manifest, fields: Sequence[str]) -> Problem:
    """Fields that the API server took and left out without a word."""
    message = (
        f"{ref_of(manifest)}: the API server does not keep {', '.join(fields)}: "
        "it has that feature off, or an admission webhook removes it"
    )
    return Problem(Cause.API_REFUSED, message, component_of(manifest))


def watched(manifest: Manifest) -> bool:
    """Whether a watch tells of this object, so that what is noted of it is also forgotten."""
    return bool(manifest["kind"] != "Secret")


def _refusal(action: Action, refused: ApiRefused) -> Problem:
    quota = "exceeded quota" in str(refused)
    cause = Cause.QUOTA_EXCEEDED if quota else Cause.API_REFUSED
    component = component_of(action.manifest) if isinstance(action, Apply | LeftOut) else None
    return Problem(cause, f"{ref_in(action)}: {refused}", component)
