"""The cells of `bench/prefix.py`: contenders, scenarios, engines, numbers of replicas.

A cell is a scenario on an engine and a number of replicas. Only the starts of sessions depend on the rate: if
they take less time than a session, all sessions of a sample run at once, and a higher rate changes nothing.
So fast engines and long think times need many sessions, and no search goes beyond a rate at which the starts
take about a quarter of a session. Where that rate attains, the capacity is at least that.

`rag-chat` on Llama-3-70B is not a cell: 24.5 % of its prompts take longer than the target of 2 s on an idle
replica, 19.1 % with an unbounded cache too, so nobody attains 90 % at any rate.

Cells are in the order in which they are computed, the cheapest first.
"""

from dataclasses import dataclass, replace
from math import inf

from penstock_cli.capacity.question import Question, SearchConditions
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge

ON_8B, ON_70B = "", "@llama-3-70b-4xh100"
"""Engines. The scenarios' own engine is Llama-3-8B on an H100."""

OURS = "slos-serve"
ATTAINMENT = 0.9


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler with its routing rules, of which the best counts."""

    name: str
    policy: str
    orders: tuple[str, ...]


CONTENDERS = (
    Contender(OURS, OURS, ("prefix", "best-fit")),
    Contender("qoserve, prefix", "qoserve", ("prefix",)),
    Contender("fluidserve, prefix", "fluidserve", ("prefix",)),
    Contender("vllm, llm-d", "vllm", ("llm-d",)),
    Contender("vllm, lmetric", "vllm", ("lmetric",)),
    Contender("vllm, sglang", "vllm", ("sglang", "sglang-16", "sglang-4")),
    Contender("vllm, dynamo", "vllm", ("dynamo", "dynamo-0.25", "dynamo-4")),
    Contender("vllm, least-loaded", "vllm", ("least-loaded",)),
    Contender("vllm, round-robin", "vllm", ("round-robin",)),
)
"""In the order in which they are searched: those that were best in other cells are first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario on one engine.

    sessions: sessions in a sample, for each replica. start_rps: rate at which searches begin.
    most_rps: rate beyond which all sessions run at once; infinite without sessions.
    """

    scenario: str
    engine: str
    replicas: int
    sessions: int
    start_rps: float
    most_rps: float = inf

    @property
    def name(self) -> str:
        """Return its name on the command line."""
        return f"{self.scenario}{self.engine}:{self.replicas}"

    @property
    def title(self) -> str:
        """Return its title."""
        model = "Llama-3-70B on 4×H100" if self.engine else "Llama-3-8B on an H100"
        return f"{self.scenario}, {model}, {self.replicas} replicas"

    def question(self, contender: Contender, order: str) -> Question:
        """Return the search of a contender under one of its rules."""
        conditions = SearchConditions(
            self.replicas,
            ATTAINMENT,
            LengthKnowledge.PREDICTED,
            TruthKind.MEASURED,
            seeds=1,
            order=order,
            sessions=self.sessions,
        )
        return Question(self.scenario + self.engine, contender.policy, conditions)

    def questions(self, contender: Contender) -> list[Question]:
        """Return all searches of a contender."""
        return [self.question(contender, order) for order in contender.orders]


FOUR = (
    Cell("rag-chat", ON_8B, 4, 300, 1.75),
    Cell("swe", ON_70B, 4, 200, 14.0, 130.0),
    Cell("swe", ON_8B, 4, 300, 40.0, 200.0),
    Cell("agents", ON_8B, 4, 20, 0.1, 0.5),
    Cell("agents", ON_70B, 4, 20, 0.1, 0.5),
    Cell("web", ON_70B, 4, 150, 8.0, 40.0),
    Cell("web", ON_8B, 4, 250, 16.0, 80.0),
)
CELLS = (*FOUR, *(replace(cell, replicas=16) for cell in FOUR))
