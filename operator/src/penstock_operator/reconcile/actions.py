"""Decides on the actions that turn the observed objects into the desired ones.

Three rules. Apply desired objects that are missing, changed or drifted. Delete objects that this pool owns
and that are not desired. Change nothing else: a desired name that belongs to another owner is a conflict,
which the pool's status reports, as is a field that the API server drops.

Ownership is the ownerReference with this pool's uid, because a name could be an earlier pool's. An object is
deleted only if it has the operator's label too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock_operator.manifests.manifest import Manifest, PoolOwner, Ref, ref_of
from penstock_operator.manifests.names import FIELD_MANAGER, MANAGED_BY, WANTED_ANNOTATION
from penstock_operator.reconcile.drift import Difference, differences


class ActionReason(StrEnum):
    """Why an action is taken; the same word is in events, logs and conditions."""

    MISSING = "missing"  # desired, and does not exist
    CHANGED = "changed"  # the desired state has changed
    DRIFTED = "drifted"  # another client has changed the object
    ORPHANED = "orphaned"  # owned by this pool, and no longer desired
    LEFT_OUT = "left_out"  # the API server drops fields
    NOT_OURS = "not_ours"  # the name belongs to another owner's object


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply this manifest by forced server-side apply.

    drift: paths of the fields that differ, for the event; empty if the object is missing or changed.
    """

    manifest: Manifest
    reason: ActionReason
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this object in the background. uid: precondition that keeps a newer object of that name."""

    ref: Ref
    uid: str
    reason: ActionReason = ActionReason.ORPHANED


@dataclass(frozen=True, slots=True)
class Conflict:
    """Do nothing: the name belongs to another owner. message: for the status."""

    ref: Ref
    message: str
    reason: ActionReason = ActionReason.NOT_OURS


@dataclass(frozen=True, slots=True)
class DroppedFields:
    """Do nothing: the API server has accepted this manifest without these fields."""

    manifest: Manifest
    fields: tuple[str, ...]
    reason: ActionReason = ActionReason.LEFT_OUT


Action = Apply | Delete | Conflict | DroppedFields


def decide(desired: Sequence[Manifest], observed: Sequence[Manifest], owner: PoolOwner) -> tuple[Action, ...]:
    """Return the actions that turn the observed objects into the desired ones; empty if they are equal.

    observed: every object in the pool's namespace with this pool's label `penstock.dev/pool`, and every
        object, of any owner, with the kind and name of a desired one. Applies come first, in the order of
        `desired`, then deletions, then conflicts. An object that is being deleted is left unchanged until it
        is gone.
    """
    by_ref = {ref_of(manifest): manifest for manifest in observed}
    steps = [_action_for(manifest, by_ref.get(ref_of(manifest)), owner) for manifest in desired]
    desired_refs = {ref_of(manifest) for manifest in desired}
    orphans = [
        Delete(ref, manifest["metadata"]["uid"])
        for ref, manifest in by_ref.items()
        if ref not in desired_refs and _may_be_deleted(manifest, owner)
    ]
    applies = [step for step in steps if isinstance(step, Apply)]
    problems = [step for step in steps if isinstance(step, Conflict | DroppedFields)]
    return (*applies, *sorted(orphans, key=lambda orphan: orphan.ref), *problems)


def _action_for(
    desired: Manifest, observed: Manifest | None, owner: PoolOwner
) -> Apply | Conflict | DroppedFields | None:
    """Return the action for one desired object."""
    if observed is None:
        return Apply(desired, ActionReason.MISSING)
    if not _is_owned(observed, owner):
        return Conflict(ref_of(desired), _conflict_message(observed))
    if _is_deleting(observed):
        return None
    applied_digest = _annotation(observed, WANTED_ANNOTATION)
    if applied_digest not in (None, _annotation(desired, WANTED_ANNOTATION)):
        return Apply(desired, ActionReason.CHANGED)
    return _field_action(desired, differences(desired, observed))


def _field_action(desired: Manifest, differs: Sequence[Difference]) -> Apply | DroppedFields | None:
    """Return the action for an object whose desired state is unchanged."""
    if drifted := tuple(each.path for each in differs if not each.owned):
        return Apply(desired, ActionReason.DRIFTED, drifted)
    left_out = tuple(each.path for each in differs if each.absent)
    return DroppedFields(desired, left_out) if left_out else None


def _is_owned(manifest: Manifest, owner: PoolOwner) -> bool:
    return any(reference["uid"] == owner.uid for reference in _owner_references(manifest))


def _may_be_deleted(manifest: Manifest, owner: PoolOwner) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return (
        _is_owned(manifest, owner) and labels.get(MANAGED_BY) == FIELD_MANAGER and not _is_deleting(manifest)
    )


def _conflict_message(manifest: Manifest) -> str:
    """Return a message that names the owner and what to do."""
    controllers = [
        f'{owner["kind"]} "{owner["name"]}"'
        for owner in _owner_references(manifest)
        if owner.get("controller")
    ]
    ownership = f"belongs to {controllers[0]}" if controllers else "has no ownerReference to this pool"
    return f"{ref_of(manifest)} {ownership}: delete it, or give the pool another name"


def _owner_references(manifest: Manifest) -> list[Manifest]:
    return manifest["metadata"].get("ownerReferences") or []


def _is_deleting(manifest: Manifest) -> bool:
    return manifest["metadata"].get("deletionTimestamp") is not None


def _annotation(manifest: Manifest, name: str) -> str | None:
    value: str | None = (manifest["metadata"].get("annotations") or {}).get(name)
    return value
