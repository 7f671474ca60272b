"""The API server's answer to an apply, compared with the applied object."""

from collections.abc import Callable
from copy import deepcopy

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.reconcile.execution import find_dropped_fields
from penstock_operator.status.diagnosis import Cause

Want = Callable[..., dict[str, Manifest]]
WEIGHTS = {
    "model": {"name": "m", "source": {"image": "weights:1"}},
    "engine": {"type": "openai", "image": "engine:1", "timeModel": "llama-3-8b-a100"},
}


def test_a_field_that_the_server_drops_is_named_by_its_path(want: Want) -> None:
    requested = want(**WEIGHTS)["StatefulSet/llama-replica"]
    made = deepcopy(requested)  # as a server without image volumes has it
    for volume in made["spec"]["template"]["spec"]["volumes"]:
        volume.pop("image", None)
    problem = find_dropped_fields(requested, made)
    assert problem is not None
    assert (problem.cause, problem.component) == (Cause.API_REFUSED, Component.REPLICA)
    assert "spec.template.spec.volumes[model].image" in problem.message


def test_an_answer_with_all_desired_fields_is_no_problem(want: Want) -> None:
    for manifest in want(**WEIGHTS).values():
        made = deepcopy(manifest)
        made["metadata"] |= {"uid": "u", "resourceVersion": "7"}
        assert find_dropped_fields(manifest, made) is None
