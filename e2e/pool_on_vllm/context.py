"""The shared state of all steps."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmodified_engines import TierTargets

from pool_on_vllm.processes import LocalPool, LocalReplica


@dataclass(slots=True)
class VllmContext:
    """State that steps extend. A step that needs the result of another comes after it.

    results: folder of figures, logs and pool files. running: stops the test's processes at its end.
    plain_urls: URLs of vLLM's own servers by token budget of a step; None: vLLM's default budget.
    plain_servers: stops these servers. targets: SLOs by tier, from the measured speed of this machine.
    capacity_rps: requests per second that one engine serves. tpot_s, p99_gap_s: TPOT and p99 gap of a single
    stream. long_prompt_ttft_s: TTFT of a single 3,000-token prompt.
    """

    results: Path
    running: ExitStack
    figures: dict[str, Any] = field(default_factory=dict)
    model: Path = Path()
    plain_urls: dict[int | None, str] = field(default_factory=dict)
    plain_servers: ExitStack = field(default_factory=ExitStack)
    targets: dict[str, TierTargets] = field(default_factory=dict)
    capacity_rps: float = 0.0
    tpot_s: float = 0.0
    p99_gap_s: float = 0.0
    long_prompt_ttft_s: float = 0.0
    references: list["Reference"] = field(default_factory=list)
    pool_or_none: LocalPool | None = None
    replicas: list[LocalReplica] = field(default_factory=list)

    @property
    def pool(self) -> LocalPool:
        assert self.pool_or_none is not None, "the pool is not up"
        return self.pool_or_none

    def file(self, name: str) -> Path:
        return self.results / name


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt and the token ids of vLLM's own greedy answer."""

    prompt: str
    tokens: tuple[int, ...]
