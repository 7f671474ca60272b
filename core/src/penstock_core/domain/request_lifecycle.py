"""The lifecycle of a request inside a replica, as a transition table.

A request waits for its verdict, then for the engine's first output, then streams, then ends in one of five
ways. A shell that handles requests calls `after` for each event. A pair that is not in the table is
impossible: `ImpossibleEvent` reports the defect in the shell.

A cancellation may arrive after the end of a request; it is ignored. All other events come from the single
task that handles the request, and cannot come after its end.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """State of a request."""

    DECIDING = "deciding"  # read from the router, no verdict yet
    WAITING = "waiting"  # accepted, waiting for release or sent to the engine; no output yet
    STREAMING = "streaming"  # output has been forwarded
    REJECTED = "rejected"  # rejected here: the router tries the next replica
    FINISHED = "finished"  # answered completely
    FAILED = "failed"  # answered with an error
    CANCELLED = "cancelled"  # no longer wanted by its client or router
    RETURNED = "returned"  # accepted, not begun, and returned: the router tries the next replica


class Event(StrEnum):
    """Event of a request."""

    ACCEPTED = "accepted"  # verdict: admitted, or best effort
    REJECTED = "rejected"  # verdict: rejected; or the engine itself has no capacity
    INVALID = "invalid"  # its body cannot be served
    OUTPUT = "output"  # bytes of the answer
    ENDED = "ended"  # the engine has completed the answer
    ENGINE_REFUSED = "engine refused"  # the engine answered with an error status
    ENGINE_LOST = "engine lost"  # the connection was lost, or the engine stopped answering
    INTERNAL_ERROR = "internal error"  # a fault of the sidecar
    RETURNED = "returned"  # the replica drains, and has not begun the request
    CANCELLED = "cancelled"  # its client or its router disconnected


class ImpossibleEvent(Exception):
    """An event that is impossible in this state: a defect of its sender."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"event '{event.value}' is impossible for a request in state '{state.value}'")
        self.state, self.event = state, event


TABLE: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        # state          event                    next
        (State.DECIDING, Event.ACCEPTED): State.WAITING,
        (State.DECIDING, Event.REJECTED): State.REJECTED,
        (State.DECIDING, Event.INVALID): State.FAILED,
        (State.DECIDING, Event.INTERNAL_ERROR): State.FAILED,
        (State.DECIDING, Event.CANCELLED): State.CANCELLED,
        (State.WAITING, Event.OUTPUT): State.STREAMING,
        (State.WAITING, Event.REJECTED): State.REJECTED,
        (State.WAITING, Event.ENGINE_REFUSED): State.FAILED,
        (State.WAITING, Event.ENGINE_LOST): State.FAILED,
        (State.WAITING, Event.INTERNAL_ERROR): State.FAILED,
        (State.WAITING, Event.CANCELLED): State.CANCELLED,
        (State.WAITING, Event.RETURNED): State.RETURNED,
        (State.STREAMING, Event.OUTPUT): State.STREAMING,
        (State.STREAMING, Event.ENDED): State.FINISHED,
        (State.STREAMING, Event.ENGINE_LOST): State.FAILED,
        (State.STREAMING, Event.INTERNAL_ERROR): State.FAILED,
        (State.STREAMING, Event.CANCELLED): State.CANCELLED,
        (State.REJECTED, Event.CANCELLED): State.REJECTED,
        (State.FINISHED, Event.CANCELLED): State.FINISHED,
        (State.FAILED, Event.CANCELLED): State.FAILED,
        (State.CANCELLED, Event.CANCELLED): State.CANCELLED,
        (State.RETURNED, Event.CANCELLED): State.RETURNED,
    }
)

ENDS = frozenset({State.REJECTED, State.FINISHED, State.FAILED, State.CANCELLED, State.RETURNED})
"""Final states."""


def after(state: State, event: Event) -> State:
    """Return the next state. Raises ImpossibleEvent if the pair is not in the table."""
    found = TABLE.get((state, event))
    if found is None:
        raise ImpossibleEvent(state, event)
    return found


def page() -> str:
    """Return the table as Markdown: a diagram of the transitions, then every pair."""
    return "\n".join([*_HEAD, *_picture(), "", *_rows(), ""])


_HEAD = (
    "# The life of a request in a replica",
    "",
    "Generated from `TABLE` in `penstock_core.domain.request_lifecycle`; a test checks that it is current.",
    "Pairs that the table below leaves empty cannot happen and raise `ImpossibleEvent`.",
    "",
)


def _picture() -> list[str]:
    ways = [f"    [*] --> {State.DECIDING.value}"]
    ways += [
        f"    {state.value} --> {then.value}: {event.value}"
        for (state, event), then in TABLE.items()
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
    return f"| {state.value} | " + " | ".join(cell.value if cell else "" for cell in cells) + " |"
