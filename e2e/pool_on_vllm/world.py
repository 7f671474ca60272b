"""The shared state of all steps."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmodified_engines import Targets

from pool_on_vllm.servers import LocalPool, Replica


@dataclass(slots=True)
class World:
    """Grows as the story goes: a step that needs what an earlier one makes comes after it.

    results: where figures, logs and pool files go. running: ends its processes when the story ends.
    plain: URLs of vLLM's own servers by their budget of tokens a step; None: vLLM's default.
    targets: SLOs by tier, from how fast this machine is. capacity_rps: that one engine answers.
    pace_s, gap_s: a lone answer's time a token, and p99 of its gaps.
    prompt_s: a lone 3,000-token prompt's time to its first token.
    """

    results: Path
    running: ExitStack
    figures: dict[str, Any] = field(default_factory=dict)
    model: Path = Path()
    plain: dict[int | None, str] = field(default_factory=dict)
    plain_running: ExitStack = field(default_factory=ExitStack)
    targets: dict[str, Targets] = field(default_factory=dict)
    capacity_rps: float = 0.0
    pace_s: float = 0.0
    gap_s: float = 0.0
    prompt_s: float = 0.0
    references: list["Reference"] = field(default_factory=list)
    pool: LocalPool | None = None
    replicas: list[Replica] = field(default_factory=list)

    @property
    def up(self) -> LocalPool:
        assert self.pool is not None, "the pool is not up"
        return self.pool

    def file(self, name: str) -> Path:
        return self.results / name


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt, and vLLM's own greedy answer to it, as tokens."""

    prompt: str
    tokens: tuple[int, ...]
