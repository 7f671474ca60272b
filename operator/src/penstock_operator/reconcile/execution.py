"""Executes the actions of a reconciliation, object by object.

If the API server rejects an object, the others are still applied: a missing ServiceMonitor CRD must not keep
a pool from serving. Rejections become problems of the status, and the pool is reconciled again soon. If the
API server does not answer, the reconciliation ends, because further calls would fail too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from penstock_operator.cluster.api_client import Api, ApiStatusError
from penstock_operator.cluster.cache import Cache
from penstock_operator.cluster.kinds import kind_of
from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.pods import component_of
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, Conflict, Delete, DroppedFields
from penstock_operator.reconcile.drift import differences
from penstock_operator.status.diagnosis import Cause, PoolProblem

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of the actions of a reconciliation. done: those that the API server has not refused."""

    done: tuple[Action, ...] = ()
    problems: tuple[PoolProblem, ...] = ()


async def execute(actions: Iterable[Action], api: Api, cache: Cache, metrics: OperatorMetrics) -> Execution:
    """Execute all actions in order. Raises ApiUnreachable."""
    done: list[Action] = []
    problems: list[PoolProblem] = []
    for action in actions:
        try:
            problem = await _execute_action(action, api, cache)
            done.append(action)
        except ApiStatusError as error:
            if error.namespace_terminating:
                break
            problem = _rejection(action, error)
        kind, reason = ref_in(action).kind, action.reason.value
        metrics.actions.labels(kind, reason, "refused" if problem else "done").inc()
        fields = {"namespace": ref_in(action).namespace, "what": str(ref_in(action)), "reason": reason}
        if problem is None:
            log.info("executed", **fields)
        else:
            log.warning("not executed", **fields, error=problem.message)
            problems.append(problem)
    return Execution(tuple(done), tuple(problems))


def ref_in(action: Action) -> Ref:
    """Return the object of an action."""
    return ref_of(action.manifest) if isinstance(action, Apply | DroppedFields) else action.ref


async def _execute_action(action: Action, api: Api, cache: Cache) -> PoolProblem | None:
    match action:
        case Apply(manifest, reason):
            applied = (
                await _restore(manifest, api) if reason is ActionReason.DRIFTED else await api.apply(manifest)
            )
            problem = find_dropped_fields(manifest, applied)
            if is_watched(manifest):
                cache.update(applied)
            return problem
        case Delete(ref, uid):
            await api.delete(ref, uid)
        case Conflict(_, message):
            return PoolProblem(Cause.NAME_TAKEN, message)
        case DroppedFields(manifest, fields):
            return _dropped_fields_problem(manifest, fields)
    return None


async def _restore(manifest: Manifest, api: Api) -> Manifest:
    """Apply a manifest; if an entry of another manager makes the result invalid, overwrite it first.

    Server-side apply never removes another manager's entry, even if both together are invalid.
    """
    try:
        return await api.apply(manifest)
    except ApiStatusError as error:
        if error.reason != "Invalid":
            raise
        await api.overwrite(manifest)
        return await api.apply(manifest)


def find_dropped_fields(manifest: Manifest, applied: Manifest) -> PoolProblem | None:
    """Return a problem with the fields that the API server dropped; None if there are none.

    Values that admission changed are only logged.
    """
    different = differences(manifest, applied)
    changed = [each.path for each in different if not each.absent]
    if changed:
        log.info("changed by admission", what=str(ref_of(manifest)), fields=changed)
    dropped = [each.path for each in different if each.absent]
    return _dropped_fields_problem(manifest, dropped) if dropped else None


def _dropped_fields_problem(manifest: Manifest, fields: Sequence[str]) -> PoolProblem:
    """Return the problem of fields that the API server dropped."""
    message = (
        f"{ref_of(manifest)}: the API server does not keep {', '.join(fields)}: "
        "it has that feature off, or an admission webhook removes it"
    )
    return PoolProblem(Cause.API_REFUSED, message, component_of(manifest))


def is_watched(manifest: Manifest) -> bool:
    """Return whether objects of this kind are watched, so that the cache is updated when they are deleted."""
    return bool(manifest["kind"] != "Secret")


def _rejection(action: Action, error: ApiStatusError) -> PoolProblem:
    quota = "exceeded quota" in str(error)
    cause = Cause.QUOTA_EXCEEDED if quota else Cause.API_REFUSED
    component = component_of(action.manifest) if isinstance(action, Apply | DroppedFields) else None
    return PoolProblem(cause, f"{ref_in(action)}: {error}{_install_hint(action, error)}", component)


def _install_hint(action: Action, error: ApiStatusError) -> str:
    """Return how to install a kind that the cluster does not have."""
    kind = kind_of(ref_in(action))
    unknown = kind.optional and error.code == 404 and isinstance(action, Apply)
    return f"; install the CustomResourceDefinition of {kind.plural}.{kind.group}" if unknown else ""
