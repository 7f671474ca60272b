"""The cached prompts that reports had, for the reports of an idle engine.

A sidecar that misses a report counts nothing as cached until that is reported again, and routers hear of it
from the sidecar. An engine that computes reports all prompts in turn. Nothing changes in one that computes
nothing, so what was reported is reported again, without a look into its tables from another thread.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from penstock_core.domain.served_prompts import CachedPrompt


class ReportedPrompts:
    """The prompts that are cached by the last report of each."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, CachedPrompt] = OrderedDict()
        self._resets = 0

    def note(self, resets: int, prompts: Iterable[CachedPrompt]) -> None:
        """Take in what a report has. resets: how often the cache was emptied."""
        if resets != self._resets:
            self.forget()
            self._resets = resets
        for prompt in prompts:
            if prompt.cached_tokens:
                self._prompts[prompt.request_id] = prompt
            else:
                self._prompts.pop(prompt.request_id, None)

    def forget(self) -> None:
        """Forget all, where a report could not be made: it may have had prompts that are gone."""
        self._prompts.clear()

    def next(self, count: int) -> list[CachedPrompt]:
        """Return some, in turn."""
        prompts = list(islice(self._prompts.values(), count))
        for prompt in prompts:
            self._prompts.move_to_end(prompt.request_id)
        return prompts
