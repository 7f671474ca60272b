"""Executes the actions of a reconciliation, object by object.

An object that the API server refuses does not keep the others from being applied: a missing ServiceMonitor
CRD must not keep a pool from serving. Refusals become problems of the status, and the pool is reconciled
again soon. If the API server does not answer, the reconciliation ends: further calls would fail as well.
"""

from collections.abc import Iterable, Sequence

import structlog

from penstock_operator.cluster.api_client import Api, ApiRefused
from penstock_operator.cluster.cache import Cache
from penstock_operator.cluster.kinds import kind_of
from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.pods import component_of
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, Conflict, Delete, LeftOut
from penstock_operator.reconcile.drift import differences
from penstock_operator.status.diagnosis import Cause, PoolProblem

log = structlog.get_logger()


async def execute(
    actions: Iterable[Action], api: Api, cache: Cache, metrics: OperatorMetrics
) -> tuple[PoolProblem, ...]:
    """Execute all actions in order. Returns the problems of those that failed. Raises ApiUnreachable."""
    problems: list[PoolProblem] = []
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
    """Return the object of an action."""
    return ref_of(action.manifest) if isinstance(action, Apply | LeftOut) else action.ref


async def _do(action: Action, api: Api, cache: Cache) -> PoolProblem | None:
    match action:
        case Apply(manifest, reason):
            made = (
                await _restore(manifest, api) if reason is ActionReason.DRIFTED else await api.apply(manifest)
            )
            problem = fields_left_out(manifest, made)
            if watched(manifest):
                cache.update(made)
            return problem
        case Delete(ref, uid):
            await api.delete(ref, uid)
        case Conflict(_, message):
            return PoolProblem(Cause.NAME_TAKEN, message)
        case LeftOut(manifest, fields):
            return _left_out(manifest, fields)
    return None


async def _restore(manifest: Manifest, api: Api) -> Manifest:
    """Apply; if an entry of another manager makes the result invalid, overwrite it first.

    Server-side apply never removes another manager's entry, even if both together are invalid.
    """
    try:
        return await api.apply(manifest)
    except ApiRefused as refused:
        if refused.reason != "Invalid":
            raise
        await api.overwrite(manifest)
        return await api.apply(manifest)


def fields_left_out(manifest: Manifest, made: Manifest) -> PoolProblem | None:
    """Return a problem with the fields that the API server dropped; None if there are none.

    Values that admission changed are only logged.
    """
    differs = differences(manifest, made)
    changed = [each.path for each in differs if not each.absent]
    if changed:
        log.info("changed by admission", what=str(ref_of(manifest)), fields=changed)
    left_out = [each.path for each in differs if each.absent]
    return _left_out(manifest, left_out) if left_out else None


def _left_out(manifest: Manifest, fields: Sequence[str]) -> PoolProblem:
    """Return the problem of fields that the API server dropped."""
    message = (
        f"{ref_of(manifest)}: the API server does not keep {', '.join(fields)}: "
        "it has that feature off, or an admission webhook removes it"
    )
    return PoolProblem(Cause.API_REFUSED, message, component_of(manifest))


def watched(manifest: Manifest) -> bool:
    """Return whether objects of this kind are watched, so that the cache also learns of their deletion."""
    return bool(manifest["kind"] != "Secret")


def _refusal(action: Action, refused: ApiRefused) -> PoolProblem:
    quota = "exceeded quota" in str(refused)
    cause = Cause.QUOTA_EXCEEDED if quota else Cause.API_REFUSED
    component = component_of(action.manifest) if isinstance(action, Apply | LeftOut) else None
    return PoolProblem(cause, f"{ref_in(action)}: {refused}{_advice(action, refused)}", component)


def _advice(action: Action, refused: ApiRefused) -> str:
    """Return how to install a kind that the cluster does not have."""
    kind = kind_of(ref_in(action))
    unknown = kind.optional and refused.code == 404 and isinstance(action, Apply)
    return f"; install the CustomResourceDefinition of {kind.plural}.{kind.group}" if unknown else ""
