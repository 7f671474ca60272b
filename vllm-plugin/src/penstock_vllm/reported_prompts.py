"""The cached prompts of earlier reports, for the reports of an idle engine.

A sidecar that misses a report treats all prompts as not cached until they are reported again, and so do the
routers. A busy engine reports all prompts in turn. In an idle engine the prompts do not change, so earlier
reports are repeated, without access to the engine's tables from another thread.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from penstock_core.domain.served_prompts import CachedPrompt


class ReportedPrompts:
    """The prompts that are cached according to their last reports."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, CachedPrompt] = OrderedDict()
        self._resets = 0

    def record(self, resets: int, prompts: Iterable[CachedPrompt]) -> None:
        """Record the prompts of a report. resets: number of times that the cache was emptied."""
        if resets != self._resets:
            self.forget()
            self._resets = resets
        for prompt in prompts:
            if prompt.cached_tokens:
                self._prompts[prompt.request_id] = prompt
            else:
                self._prompts.pop(prompt.request_id, None)

    def forget(self) -> None:
        """Forget all prompts, because a report is missing and may have had prompts that are gone."""
        self._prompts.clear()

    def next(self, count: int) -> list[CachedPrompt]:
        """Return the next prompts, in turn."""
        prompts = list(islice(self._prompts.values(), count))
        for prompt in prompts:
            self._prompts.move_to_end(prompt.request_id)
        return prompts
