"""Names of jobs: each request that the engine holds has one of its own.

The sidecar names a request and counts its answers (`sequence_ids`): the name, then `name~1`, `name~2` and so
on. vLLM makes a request of each answer and of each prompt in a list, and all carry the same fields. They are
counted here as they come, also past those that have ended already.

A request that came past the sidecar may carry any name, another request's too, or an id of any length.
"""

from collections.abc import Container

from penstock_core.domain.engine_fields import LONGEST_WORD, sequence_id
from penstock_core.domain.request import RequestId

MOST_REMEMBERED = 4096
"""Names whose answers are counted. All answers to one request come within a moment."""


class AnswerNames:
    """Gives each answer its name."""

    def __init__(self) -> None:
        self._answers: dict[RequestId, int] = {}

    def of(self, name: RequestId, taken: Container[RequestId]) -> RequestId:
        """The name of the next answer to the request of this name, where those of others are `taken`."""
        name = "".join(one if one.isprintable() else "?" for one in name[:LONGEST_WORD])
        number = self._answers.pop(name, 0)
        while (found := sequence_id(name, number)) in taken:
            number += 1
        self._answers[name] = number + 1
        if len(self._answers) > MOST_REMEMBERED:
            del self._answers[next(iter(self._answers))]
        return found
