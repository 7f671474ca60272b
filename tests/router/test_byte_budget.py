"""Bytes of all requests of a router: new ones are refused, the largest is cancelled, others continue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.upstream_request import Overflowed, UpstreamRequest
from penstock_routing.request.byte_budget import BodyBytes, ByteBudget
from penstock_runtime.openai_errors import ApiError


def upstream(budget: ByteBudget, id: int = 1, bound_bytes: int | None = None) -> UpstreamRequest:
    made = UpstreamRequest(id, bound_bytes)
    made.use_budget(budget)
    return made


def test_a_body_is_held_until_its_request_ends() -> None:
    budget = ByteBudget(100)
    with BodyBytes(budget) as body:
        body.add(60)
        body.add(40)
        assert budget.held_bytes == 100
        with BodyBytes(budget) as other, pytest.raises(ApiError, match="buffers 100 bytes") as refusal:
            other.add(1)
        assert (refusal.value.status, refusal.value.code) == (429, "router_full")
        assert budget.held_bytes == 100
    assert budget.held_bytes == 0


def test_a_part_that_is_arriving_is_held_too() -> None:
    budget = ByteBudget(100)
    with BodyBytes(budget) as body:
        body.add(20)
        body.arriving(80)
        assert budget.held_bytes == 100
        with pytest.raises(ApiError, match="buffers 100 bytes"):
            body.arriving(81)
        body.arriving(0)  # it is complete
        body.add(80)
        assert budget.held_bytes == 100
        with BodyBytes(budget) as empty:
            empty.arriving(0)
    assert budget.held_bytes == 0


def test_output_is_counted_until_the_poll_after_its_read() -> None:
    budget = ByteBudget(100)
    one = upstream(budget)
    one.put(b"x" * 30, 1)
    assert one.take().data == b"x" * 30
    assert budget.held_bytes == 30  # it is being written
    one.take()
    assert budget.held_bytes == 0


def test_the_request_that_holds_most_is_dropped_and_others_stay() -> None:
    budget = ByteBudget(100)
    small, large, new = upstream(budget, 1), upstream(budget, 2), upstream(budget, 3)
    assert small.put(b"x" * 20, 1)
    assert large.put(b"x" * 70, 1)
    assert new.put(b"x" * 30, 1)
    assert isinstance(large.end, Overflowed)
    assert (small.end, new.end) == (None, None)
    assert budget.held_bytes == 50
    assert small.take().data == b"x" * 20


def test_a_single_request_over_the_bound_is_dropped() -> None:
    budget = ByteBudget(100)
    freed: list[bool] = []
    one = UpstreamRequest(1, None, lambda: freed.append(True))
    one.use_budget(budget)
    assert not one.put(b"x" * 101, 1)
    assert freed == [True]
    assert (one.take().data, budget.held_bytes) == (b"", 0)


def test_bodies_without_output_drop_no_request() -> None:
    budget = ByteBudget(100)
    one = upstream(budget)
    with BodyBytes(budget) as body:
        body.add(100)
        assert one.put(b"", 0)
        assert one.end is None


def test_a_released_upstream_request_counts_no_more_bytes() -> None:
    budget = ByteBudget(100)
    one = upstream(budget)
    one.put(b"x" * 10, 1)
    one.release()
    one.put(b"x" * 10, 1)
    one.release()
    one.take()
    one.take()
    assert budget.held_bytes == 0


def test_up_to_the_bound_no_request_is_dropped_and_one_byte_beyond_the_largest() -> None:
    budget = ByteBudget(100)
    one, other = upstream(budget, 1), upstream(budget, 2)
    one.put(b"x" * 60, 1)
    assert other.put(b"x" * 40, 1)
    budget.drop_largest()
    assert (one.end, other.end) == (None, None)
    assert other.put(b"x", 1)
    assert isinstance(one.end, Overflowed)
    assert budget.held_bytes == 41


def test_a_single_byte_of_output_beside_bodies_is_dropped() -> None:
    budget = ByteBudget(100)
    one = upstream(budget)
    with BodyBytes(budget) as body:
        body.add(100)
        assert not one.put(b"x", 1)
        assert isinstance(one.end, Overflowed)
        assert budget.held_bytes == 100


def test_without_buffered_output_no_request_is_dropped() -> None:
    budget = ByteBudget(100)
    with BodyBytes(budget) as body:
        body.add(100)
        budget.bound_bytes = 50
        budget.drop_largest()
        one = upstream(budget)
        budget.drop_largest()
        assert one.end is None
        assert budget.held_bytes == 100


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "take", "finish", "release"]), st.integers(0, 3)), max_size=60
)


@given(STEPS, st.lists(st.integers(0, 60), min_size=60, max_size=60))
def test_held_bytes_stay_within_the_bound_and_return_to_zero(
    steps: list[tuple[str, int]], lengths: list[int]
) -> None:
    budget = ByteBudget(100)
    requests = [upstream(budget, id, bound_bytes=None if id % 2 else 50) for id in range(4)]
    for (what, which), length in zip(steps, lengths, strict=False):
        one = requests[which]
        match what:
            case "put":
                one.put(b"x" * length, 1)
            case "take":
                one.take()
            case "finish":
                one.finish(wire.Finished())
            case _:
                one.release()
        assert 0 <= budget.held_bytes <= 100
    for one in requests:
        one.release()
    assert budget.held_bytes == 0
