"""Decides on the actions that turn the observed objects into the desired ones.

Three rules. Apply what is missing, changed or drifted. Delete what this pool owns and no longer wants. Touch
nothing else: an object of a wanted name that this pool does not own is a conflict for a person to solve, and
says so in the pool's status. So does a field that the API server leaves out however often it is sent.

Ownership is the ownerReference with this pool's uid (a name alone could be an earlier pool's). To be deleted
an object has to carry the operator's label besides: two marks that no accident makes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock_operator.manifests.manifest import Manifest, Owner, Ref, ref_of
from penstock_operator.manifests.names import FIELD_MANAGER, MANAGED_BY, WANTED_ANNOTATION
from penstock_operator.reconcile.drift import Difference, differences


class ActionReason(StrEnum):
    """Why an action is taken; the same word is in events, logs and conditions."""

    MISSING = "missing"  # wanted, and not there
    CHANGED = "changed"  # the pool or the operator wants something else than it did
    DRIFTED = "drifted"  # the same is wanted, somebody changed the object
    ORPHANED = "orphaned"  # this pool's, and no longer wanted
    LEFT_OUT = "left_out"  # sent, and the API server does not keep it
    NOT_OURS = "not_ours"  # wanted, but the name is taken by somebody else's object


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply this manifest, server side, by force: what it names is the operator's.

    drift: paths of the fields that differ, for the event; empty where the object is missing or changed.
    """

    manifest: Manifest
    reason: ActionReason
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this object, in the background. uid: a precondition, so that a namesake made since is safe."""

    ref: Ref
    uid: str
    reason: ActionReason = ActionReason.ORPHANED


@dataclass(frozen=True, slots=True)
class Conflict:
    """Do nothing: the name belongs to somebody else. message: for the status, in words."""

    ref: Ref
    message: str
    reason: ActionReason = ActionReason.NOT_OURS


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Do nothing: the API server has taken this manifest, and left out these fields."""

    manifest: Manifest
    fields: tuple[str, ...]
    reason: ActionReason = ActionReason.LEFT_OUT


Action = Apply | Delete | Conflict | LeftOut


def decide(wanted: Sequence[Manifest], observed: Sequence[Manifest], owner: Owner) -> tuple[Action, ...]:
    """Actions that turn what is observed into what is wanted; none where that is so already.

    observed: every object in the pool's namespace with the label `penstock.dev/pool` of this pool, and
        every object, whosever, that has the kind and name of a wanted one.
    Applies come first and in the order of `wanted`, then deletions, last what only a person can solve. An
    object that is being deleted is left alone until it is gone.
    """
    there = {ref_of(manifest): manifest for manifest in observed}
    steps = [_towards(manifest, there.get(ref_of(manifest)), owner) for manifest in wanted]
    still_wanted = {ref_of(manifest) for manifest in wanted}
    orphans = [
        Delete(ref, manifest["metadata"]["uid"])
        for ref, manifest in there.items()
        if ref not in still_wanted and _may_be_deleted(manifest, owner)
    ]
    applies = [step for step in steps if isinstance(step, Apply)]
    problems = [step for step in steps if isinstance(step, Conflict | LeftOut)]
    return (*applies, *sorted(orphans, key=lambda orphan: orphan.ref), *problems)


def _towards(wanted: Manifest, observed: Manifest | None, owner: Owner) -> Apply | Conflict | LeftOut | None:
    """What to do about one wanted object."""
    if observed is None:
        return Apply(wanted, ActionReason.MISSING)
    if not _owned(observed, owner):
        return Conflict(ref_of(wanted), _whose(observed))
    if _leaving(observed):
        return None
    asked_before = _annotation(observed, WANTED_ANNOTATION)
    if asked_before not in (None, _annotation(wanted, WANTED_ANNOTATION)):
        return Apply(wanted, ActionReason.CHANGED)
    return _about_fields(wanted, differences(wanted, observed))


def _about_fields(wanted: Manifest, differs: Sequence[Difference]) -> Apply | LeftOut | None:
    """What to do about an object that was asked for as it is wanted now."""
    if taken := tuple(each.path for each in differs if not each.owned):
        return Apply(wanted, ActionReason.DRIFTED, taken)
    left_out = tuple(each.path for each in differs if each.absent)
    return LeftOut(wanted, left_out) if left_out else None


def _owned(manifest: Manifest, owner: Owner) -> bool:
    return any(reference["uid"] == owner.uid for reference in _owners(manifest))


def _may_be_deleted(manifest: Manifest, owner: Owner) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return _owned(manifest, owner) and labels.get(MANAGED_BY) == FIELD_MANAGER and not _leaving(manifest)


def _whose(manifest: Manifest) -> str:
    """In words, with what to do."""
    keepers = [f'{owner["kind"]} "{owner["name"]}"' for owner in _owners(manifest) if owner.get("controller")]
    whose = f"belongs to {keepers[0]}" if keepers else "has no ownerReference to this pool"
    return f"{ref_of(manifest)} {whose}: delete it, or give the pool another name"


def _owners(manifest: Manifest) -> list[Manifest]:
    return manifest["metadata"].get("ownerReferences") or []


def _leaving(manifest: Manifest) -> bool:
    return manifest["metadata"].get("deletionTimestamp") is not None


def _annotation(manifest: Manifest, name: str) -> str | None:
    value: str | None = (manifest["metadata"].get("annotations") or {}).get(name)
    return value
