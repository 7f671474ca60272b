"""Token usage of applications: estimated when a request arrives, counted when it has ended.

Replicas report a request's usage at its end. Until then, prompt tokens are estimated from bytes, and answer
tokens are `max_tokens`, or without it the mean of the application's answers.
"""

from collections.abc import Iterable

from penstock_core.routing.replica_load import estimated_tokens
from penstock_pool import Application
from prometheus_client import CollectorRegistry, Counter

from penstock_routing.request.outcome import Outcome
from penstock_routing.request.request_body import BodyFields

FIRST_ANSWER_TOKENS = 256
"""Assumed tokens of an answer before an application's first answer."""

WEIGHT = 0.1
"""Weight of the newest answer in the average."""


class UsageMetrics:
    """Metrics of token usage."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tokens = Counter(
            "penstock_router_application_tokens",
            "Tokens of ended requests: prompt, cached (of the prompt), completion.",
            ["application", "kind"],
            registry=registry,
        )


class Usage:
    """Token usage of applications through one router.

    context_tokens: most tokens of a prompt and its answer together.
    """

    def __init__(
        self, applications: Iterable[Application], context_tokens: int, metrics: UsageMetrics
    ) -> None:
        self._context_tokens = context_tokens
        self._answer_tokens = {each.name: float(FIRST_ANSWER_TOKENS) for each in applications}
        self._tokens = metrics.tokens

    def expected(self, application: Application | None, body_bytes: int, fields: BodyFields) -> int:
        """Return an estimate of the tokens that a request will use."""
        if application is None:
            return 0
        answer = self._answer_tokens[application.name] if fields.max_tokens is None else fields.max_tokens
        answer_tokens = min(max(int(answer), 0), self._context_tokens)
        return estimated_tokens(body_bytes) + fields.sequences * answer_tokens

    def ended(self, application: Application | None, outcome: Outcome, body_bytes: int) -> int:
        """Count the tokens that a request used, and return them. A cancelled one used those received."""
        if application is None:
            return 0
        name, finished = application.name, outcome.finished
        if finished is not None:
            prompt, completion = finished.prompt_tokens, finished.completion_tokens
            self._tokens.labels(name, "cached").inc(finished.cached_tokens)
            self._answer_tokens[name] += WEIGHT * (completion - self._answer_tokens[name])
        else:
            completion = len(outcome.token_times_s)
            prompt = estimated_tokens(body_bytes) if completion else 0
        self._tokens.labels(name, "prompt").inc(prompt)
        self._tokens.labels(name, "completion").inc(completion)
        return prompt + completion
