from penstock_core.external_engine.slots import EngineSlots

SLOTS = EngineSlots(limit=16, most=16)


def test_an_engine_that_refuses_gets_no_more_than_it_accepted() -> None:
    assert SLOTS.refused(sent=5).most == 5
    assert SLOTS.refused(sent=0).most == 1
    assert EngineSlots(16, 3).refused(sent=5).most == 3


def test_an_engine_queue_counts_when_it_is_reported_twice() -> None:
    once = SLOTS.reported(running=4, waiting=2)
    assert once.most == 16
    assert once.reported(running=4, waiting=1).most == 4
    assert once.reported(running=0, waiting=1).most == 1
    assert once.reported(running=4, waiting=0).reported(running=4, waiting=2).most == 16


def test_a_learned_slot_limit_is_relaxed_up_to_the_configured_one() -> None:
    assert EngineSlots(16, 8).relaxed().most == 10
    slots = EngineSlots(16, 1, queued=True)
    for _ in range(20):
        slots = slots.reported(running=1, waiting=0)
    assert slots == SLOTS
