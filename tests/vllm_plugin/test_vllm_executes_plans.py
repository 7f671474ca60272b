"""vLLM's own scheduler sends exactly the policy's step to its workers."""

from dataclasses import replace

import pytest
from penstock_core.policies import POLICIES
from virtual.engine import Kind
from virtual.life import Moment, life

STEPS = 400

SCARCE = Kind(blocks=100, batch_tokens=256, running=32)
KINDS = {
    "ample": Kind(),
    "scarce": SCARCE,
    "drafting": Kind(drafts=4),
    "scarce and drafting": replace(SCARCE, drafts=4),
    "ahead": Kind(ahead=True),
    "scarce and ahead": replace(SCARCE, ahead=True),
    "drafting and ahead": Kind(drafts=4, ahead=True),
}


def assert_carried_out(moment: Moment) -> None:
    wanted, view, output = moment.wanted, moment.view, moment.output
    assert wanted is not None and view is not None
    names = {held.request.request_id: name for name, held in moment.engine.scheduler.ledger.by_name.items()}
    drafts = {names[i]: len(ids) for i, ids in output.scheduled_spec_decode_tokens.items()}
    tokens = [(names[i], n - drafts.get(names[i], 0)) for i, n in output.num_scheduled_tokens.items()]
    running = {job.request.id for job in view.running}
    in_order = sorted(wanted.tokens.items(), key=lambda item: item[0] not in running)
    assert tokens == in_order, "running requests in the planned order, then new ones in theirs"
    assert sorted(names[i] for i in output.preempted_req_ids) == sorted(wanted.preempt)
    assert all(count <= wanted.drafts.get(name, 0) for name, count in drafts.items())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_the_policys(policy: str, kind: str) -> None:
    requested = 0
    for moment in life(replace(KINDS[kind], policy=policy), seed=1, steps=STEPS, always=True):
        scheduler = moment.engine.scheduler
        if moment.wanted is not None:
            assert_carried_out(moment)
            requested += 1
    assert requested > STEPS / 2
    assert scheduler.faults.counted == {}
