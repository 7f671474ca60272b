"""The cached prefixes of prompts that a replica reports to routers, and the changes since its last report.

The whole prompt and its prefixes of 1, 2, 4, 8 … marks are reported, as far as they are cached. By the
longest known prefix a router finds all of an earlier turn, and more than half of what two other prompts
share. So a prompt of 400 marks takes ten keys of 8 bytes.

Changes are kept in order, so that each session is sent those since its last frame. A new session, or one that
has missed some, is sent all prefixes.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from penstock_core.domain.request import RequestId
from penstock_runtime.prompt_marks import PromptMarks

MOST_REPORTED = 4096
"""Most prefixes of all prompts, 32 kB in a message: those of 300 prompts of 100,000 tokens. The least
recently served prompts are left out."""


class Change(NamedTuple):
    """A change of a prefix. cached: whether it is cached from now on."""

    key: int
    cached: bool


class ReportedPrefixes:
    """The reported prefixes of one replica."""

    def __init__(self) -> None:
        self._of_prompt: OrderedDict[RequestId, tuple[int, ...]] = OrderedDict()  # the least recent first
        self._prompts: dict[int, int] = {}  # how many prompts have each prefix
        self._changes: deque[Change] = deque(maxlen=2 * MOST_REPORTED)
        self._count = 0  # changes so far, including those that are no longer kept

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def count(self) -> int:
        """Return the number of changes so far."""
        return self._count

    def report(self, request_id: RequestId, keys: tuple[int, ...]) -> None:
        """Set the reported prefixes of a prompt."""
        before = self._of_prompt.get(request_id, ())
        if keys == before:
            return
        self._add(keys)
        self._remove(before)
        self._of_prompt.pop(request_id, None)
        if keys:
            self._of_prompt[request_id] = keys
        while len(self._prompts) > MOST_REPORTED:
            self._remove(self._of_prompt.popitem(last=False)[1])

    def since(self, count: int) -> list[Change] | None:
        """Return the changes after the first `count`, the last one of each prefix; None if some are lost."""
        missed = self._count - count
        if missed > len(self._changes):
            return None
        kept = islice(self._changes, len(self._changes) - missed, None)
        return [*{change.key: change for change in kept}.values()]

    def all(self) -> list[Change]:
        """Return all prefixes as changes."""
        return [Change(key, True) for key in self._prompts]

    def _add(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._prompts[key] = self._prompts.get(key, 0) + 1
            if self._prompts[key] == 1:
                self._note(Change(key, True))

    def _remove(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._prompts[key] -= 1
            if not self._prompts[key]:
                del self._prompts[key]
                self._note(Change(key, False))

    def _note(self, change: Change) -> None:
        self._changes.append(change)
        self._count += 1


def reported_marks(marks: PromptMarks) -> list[int]:
    """Return the indices of the marks that are reported if they are cached, in ascending order."""
    last = len(marks.marks) - 1
    powers = [(1 << power) - 1 for power in range(max(last, 0).bit_length() + 1)]
    return [*[at for at in powers if at < last], *([last] if last >= 0 else [])]
