"""The life of one request inside a replica, as a table that can be read aloud.

A request waits for its verdict, then for the engine's first output, then streams, then ends in one of five
ways. What must be done on the way stands beside each transition, so a shell that carries requests asks
`after` and does what it says; it keeps no rules of its own. A pair that is not in the table cannot happen:
where it does, the shell is wrong, and `ImpossibleEvent` says so at once.

A cancel may cross the ending on the wire, so an ended request takes it and nothing happens. Everything else
comes from the one task that carries the request, and cannot come after its end.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a request is."""

    DECIDING = "deciding"  # read from the router, no verdict yet
    WAITING = "waiting"  # accepted, and held for the engine or sent to it; nothing has come back
    STREAMING = "streaming"  # output has been passed on
    REJECTED = "rejected"  # not here: the router asks the next replica
    FINISHED = "finished"  # answered whole
    FAILED = "failed"  # answered by an error
    CANCELLED = "cancelled"  # nobody waits for it any more
    RETURNED = "returned"  # accepted, not begun, and handed back: the router asks the next replica


class Event(StrEnum):
    """What happens to it."""

    ACCEPTED = "accepted"  # the verdict: admitted, or best effort
    REFUSED = "refused"  # the verdict: rejected; or the engine itself has no room
    INVALID = "invalid"  # its body cannot be served
    OUTPUT = "output"  # bytes of the answer
    ENDED = "ended"  # the engine has closed the answer as it should
    ENGINE_REFUSED = "engine refused"  # the engine answered with an error status
    ENGINE_LOST = "engine lost"  # the connection broke, or the engine stopped answering
    BROKE = "broke"  # a fault of our own
    RETURNED = "returned"  # the replica drains, and has not begun with it
    CANCELLED = "cancelled"  # its client went away, or its router did


class Do(StrEnum):
    """What the shell must do when it happens."""

    SEND = "send it to the engine"
    ANSWER_REJECTED = "answer: rejected"
    ANSWER_FAILED = "answer: failed"
    ANSWER_FINISHED = "answer: finished"
    ANSWER_RETURNED = "answer: handed back"
    PASS_ON = "pass the bytes on"
    ABORT = "close the engine's stream"
    NOTHING = "nothing"


class ImpossibleEvent(Exception):
    """An event that cannot happen in this state: whoever reported it is wrong."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"a request that is {state.value} cannot see: {event.value}")
        self.state, self.event = state, event


TABLE: Mapping[tuple[State, Event], tuple[State, Do]] = MappingProxyType(
    {
        # state           event                     next             what the shell must do
        (State.DECIDING, Event.ACCEPTED): (State.WAITING, Do.SEND),
        (State.DECIDING, Event.REFUSED): (State.REJECTED, Do.ANSWER_REJECTED),
        (State.DECIDING, Event.INVALID): (State.FAILED, Do.ANSWER_FAILED),
        (State.DECIDING, Event.BROKE): (State.FAILED, Do.ANSWER_FAILED),
        (State.DECIDING, Event.CANCELLED): (State.CANCELLED, Do.NOTHING),
        (State.WAITING, Event.OUTPUT): (State.STREAMING, Do.PASS_ON),
        (State.WAITING, Event.REFUSED): (State.REJECTED, Do.ANSWER_REJECTED),
        (State.WAITING, Event.ENGINE_REFUSED): (State.FAILED, Do.ANSWER_FAILED),
        (State.WAITING, Event.ENGINE_LOST): (State.FAILED, Do.ANSWER_FAILED),
        (State.WAITING, Event.BROKE): (State.FAILED, Do.ANSWER_FAILED),
        (State.WAITING, Event.CANCELLED): (State.CANCELLED, Do.ABORT),
        (State.WAITING, Event.RETURNED): (State.RETURNED, Do.ANSWER_RETURNED),
        (State.STREAMING, Event.OUTPUT): (State.STREAMING, Do.PASS_ON),
        (State.STREAMING, Event.ENDED): (State.FINISHED, Do.ANSWER_FINISHED),
        (State.STREAMING, Event.ENGINE_LOST): (State.FAILED, Do.ANSWER_FAILED),
        (State.STREAMING, Event.BROKE): (State.FAILED, Do.ANSWER_FAILED),
        (State.STREAMING, Event.CANCELLED): (State.CANCELLED, Do.ABORT),
        (State.REJECTED, Event.CANCELLED): (State.REJECTED, Do.NOTHING),
        (State.FINISHED, Event.CANCELLED): (State.FINISHED, Do.NOTHING),
        (State.FAILED, Event.CANCELLED): (State.FAILED, Do.NOTHING),
        (State.CANCELLED, Event.CANCELLED): (State.CANCELLED, Do.NOTHING),
        (State.RETURNED, Event.CANCELLED): (State.RETURNED, Do.NOTHING),
    }
)

ENDS = frozenset({State.REJECTED, State.FINISHED, State.FAILED, State.CANCELLED, State.RETURNED})
"""States that a request never leaves."""


def after(state: State, event: Event) -> tuple[State, Do]:
    """The next state, and what must be done. Raises ImpossibleEvent where the pair cannot happen."""
    found = TABLE.get((state, event))
    if found is None:
        raise ImpossibleEvent(state, event)
    return found


def page() -> str:
    """The table as a page for people: a picture of the ways through it, then every pair."""
    return "\n".join([*_HEAD, *_picture(), "", *_rows(), ""])


_HEAD = (
    "# The life of a request in a replica",
    "",
    "Generated from `TABLE` in `penstock_core.domain.request_lifecycle`; a test keeps it fresh.",
    "Pairs that the table below leaves empty cannot happen and raise `ImpossibleEvent`.",
    "",
)


def _picture() -> list[str]:
    ways = [f"    [*] --> {State.DECIDING.value}"]
    ways += [
        f"    {state.value} --> {then.value}: {event.value}"
        for (state, event), (then, _) in TABLE.items()
        if state not in ENDS
    ]
    ways += [f"    {state.value} --> [*]" for state in State if state in ENDS]
    return ["```mermaid", "stateDiagram-v2", *ways, "```"]


def _rows() -> list[str]:
    head = "| state | " + " | ".join(event.value for event in Event) + " |"
    rule = "|---" * (len(Event) + 1) + "|"
    return [head, rule, *(_row(state) for state in State)]


def _row(state: State) -> str:
    cells = [TABLE.get((state, event)) for event in Event]
    told = [f"**{cell[0].value}**: {cell[1].value}" if cell else "" for cell in cells]
    return f"| {state.value} | " + " | ".join(told) + " |"
