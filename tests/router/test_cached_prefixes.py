"""A router's index of the prefixes that replicas have cached."""

import orjson
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.routing.replica_load import estimated_tokens
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas import cached_prefixes
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_runtime.prompt_marks import Mark, PromptMarks, prompt_marks
from pytest import MonkeyPatch


def marks(*keys: int, token_ids: bool = False) -> PromptMarks:
    """Of a prompt with 400 bytes, or tokens, to each mark."""
    return PromptMarks(tuple(Mark(key, 400 * (at + 1)) for at, key in enumerate(keys)), token_ids)


def added(*keys: int, complete: bool = False) -> wire.CachedPrefixes:
    return wire.CachedPrefixes(added=keys, complete=complete)


def test_each_replica_counts_with_its_longest_beginning() -> None:
    prefixes = CachedPrefixes()
    prefixes.holder("r0").update(added(1, 2))
    prefixes.holder("r1").update(added(1, 9))
    prefixes.holder("r2").update(added(8))
    assert prefixes.cached_tokens(marks(1, 2, 3)) == {
        "r0": estimated_tokens(800),
        "r1": estimated_tokens(400),
    }
    assert prefixes.cached_tokens(marks(1, 2, token_ids=True)) == {"r0": 800, "r1": 400}


def test_removed_and_replaced_prefixes_are_no_longer_held() -> None:
    prefixes = CachedPrefixes()
    holder = prefixes.holder("r0")
    holder.update(added(1, 2))
    holder.update(wire.CachedPrefixes(removed=[2, 7]))
    assert prefixes.cached_tokens(marks(1, 2)) == {"r0": estimated_tokens(400)}
    holder.update(added(5, complete=True))
    assert prefixes.cached_tokens(marks(1, 2)) == {}
    assert prefixes.cached_tokens(marks(5)) == {"r0": estimated_tokens(400)}


def test_removing_a_replaced_replica_leaves_the_prefixes_of_its_successor() -> None:
    prefixes = CachedPrefixes()
    old, new = prefixes.holder("r0"), prefixes.holder("r0")
    old.update(added(1))
    new.update(added(1))
    old.forget()
    assert prefixes.cached_tokens(marks(1)) == {"r0": estimated_tokens(400)}
    new.forget()
    assert len(prefixes) == 0


def test_a_replica_is_known_after_its_first_report_even_an_empty_one() -> None:
    prefixes = CachedPrefixes()
    assert not prefixes.known
    prefixes.holder("r0").update(wire.CachedPrefixes(complete=True))
    assert prefixes.known


def test_the_prefixes_of_one_replica_are_bounded(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(cached_prefixes, "MOST_PREFIXES", 3)
    prefixes = CachedPrefixes()
    holder = prefixes.holder("r0")
    holder.update(added(1, 2))
    holder.update(added(3, 4, 5))
    assert len(prefixes) == 3
    holder.update(added(6))
    assert len(prefixes) == 3
    holder.update(wire.CachedPrefixes(added=[6], removed=[1]))
    assert prefixes.cached_tokens(marks(6)) == {"r0": estimated_tokens(400)}


def test_a_turn_is_found_by_the_marks_of_the_turn_before() -> None:
    prefixes = CachedPrefixes()
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    before, after = (prompt_marks(orjson.dumps({"messages": turns[:count]})) for count in (1, 2))
    prefixes.holder("r1").update(added(before.marks[-1].key))
    assert prefixes.cached_tokens(after) == {"r1": estimated_tokens(before.size)}


names = st.sampled_from(["r0", "r1", "r2"])
some = st.lists(st.integers(0, 12), max_size=6)


@given(st.lists(st.tuples(names, some, some, st.booleans()), max_size=40))
def test_the_index_has_exactly_the_reported_prefixes(
    messages: list[tuple[str, list[int], list[int], bool]],
) -> None:
    prefixes = CachedPrefixes()
    holders = {name: prefixes.holder(name) for name in ("r0", "r1", "r2")}
    held: dict[str, set[int]] = {name: set() for name in holders}
    for name, more, fewer, complete in messages:
        holders[name].update(wire.CachedPrefixes(added=more, removed=fewer, complete=complete))
        held[name] = ((set() if complete else held[name]) - set(fewer)) | set(more)
    for key in range(13):
        assert set(prefixes.cached_tokens(marks(key))) == {name for name in held if key in held[name]}
    for holder in holders.values():
        holder.forget()
    assert len(prefixes) == 0
