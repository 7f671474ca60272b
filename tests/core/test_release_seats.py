from penstock_core.external_engine.slots import Seats

SEATS = Seats(limit=16, most=16)


def test_an_engine_that_refuses_is_given_no_more_than_it_took() -> None:
    assert SEATS.refused(inside=5).most == 5
    assert SEATS.refused(inside=0).most == 1
    assert Seats(16, 3).refused(inside=5).most == 3


def test_a_queue_in_the_engine_counts_when_it_is_seen_twice() -> None:
    once = SEATS.told(running=4, waiting=2)
    assert once.most == 16
    assert once.told(running=4, waiting=1).most == 4
    assert once.told(running=0, waiting=1).most == 1
    assert once.told(running=4, waiting=0).told(running=4, waiting=2).most == 16


def test_what_was_learned_is_relaxed_up_to_the_pools_word() -> None:
    assert Seats(16, 8).relaxed().most == 10
    seats = Seats(16, 1, queued=True)
    for _ in range(20):
        seats = seats.told(running=1, waiting=0)
    assert seats == SEATS
