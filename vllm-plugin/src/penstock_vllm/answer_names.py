"""Names of jobs: each request in the engine has a unique one.

The sidecar names a request and numbers its answers (`sequence_ids`): the name, then `name~1`, `name~2` and so
on. vLLM makes one request per answer and per prompt in a list, all with the same fields. They are numbered
here in order of arrival, even if earlier ones have ended.

A request that bypassed the sidecar may have any name of any length, including another request's name.
"""

from collections.abc import Container

from penstock_core.domain.engine_fields import LONGEST_STRING, sequence_id
from penstock_core.domain.request import RequestId

MOST_REMEMBERED = 4096
"""Most names whose answers are numbered. All answers to one request arrive at almost the same time."""


class AnswerNames:
    """Assigns each answer its name."""

    def __init__(self) -> None:
        self._answers: dict[RequestId, int] = {}

    def of(self, name: RequestId, taken: Container[RequestId]) -> RequestId:
        """Return the name of the next answer to the request of this name. taken: names in use."""
        name = "".join(one if one.isprintable() else "?" for one in name[:LONGEST_STRING])
        number = self._answers.pop(name, 0)
        while (found := sequence_id(name, number)) in taken:
            number += 1
        self._answers[name] = number + 1
        if len(self._answers) > MOST_REMEMBERED:
            del self._answers[next(iter(self._answers))]
        return found
