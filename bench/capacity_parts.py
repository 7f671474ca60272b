"""The tables of `bench/capacity.py`: which policies in which scenarios, under which conditions.

"As in the papers" runs every other policy as its paper did: without a drafter. "At their best" gives every
other policy the engine's drafter with a fixed number of draft tokens (`NAME-spec`), and tunes that number,
the token budget and the slots (`penstock_cli.capacity.setting`). Rates of a table share their samples.
"""

from dataclasses import dataclass, replace

from penstock_cli.capacity.question import Question, SearchConditions
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge

OURS, DISTSERVE = "slos-serve", "distserve-spec"
PAPER = ("chatbot", "coder", "summarizer", "toolllm", "reasoning", "mixed")
OTHERS = ("arxiv", "mooncake", "servegen-reasoning")
SCALED = ("chatbot", "coder", "toolllm")
ON_KERNELS = (
    "chatbot@opt-13b-a100",
    "coder@opt-13b-a100",
    "summarizer@opt-13b-a100",
    "toolllm@llama-3-8b-a100",
    "reasoning@qwen2.5-7b-a100",
    "mixed@opt-13b-a100",
)
"""Each scenario on the nearest engine with measured kernel tables; its own engine has none."""

MAIN = (OURS, "vllm", "sarathi")
AS_IN_PAPERS = (
    "sola",
    "accelgen",
    "annealing",
    "distserve",
    "vllm-legacy",
    "sjf",
    "fastserve",
    "orca",
    "fcfs",
)
# sarathi decides as vllm does with the same budget, so it is not tuned separately.
STRONGEST = ("fluidserve-spec", "qoserve-spec", "annealing-spec", "vllm-spec", "accelgen-spec")
AT_BEST = (
    *STRONGEST,
    "sola-spec",
    "sjf-spec",
    "fastserve-spec",
    DISTSERVE,
    "orca-spec",
    "vllm-legacy-spec",
)

KNOWN = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 3, "round-robin")
PREDICTED = replace(KNOWN, lengths=LengthKnowledge.PREDICTED, truth=TruthKind.MEASURED)
ONE_SAMPLE = replace(KNOWN, seeds=1)
FOUR = replace(KNOWN, replicas=4, seeds=1)


@dataclass(frozen=True, slots=True)
class PagePart:
    """One table of the page. versus_best: whether it compares slos-serve with the best other policy."""

    title: str
    conditions: SearchConditions
    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    versus_best: bool = False

    def questions(self) -> list[Question]:
        return [Question(s, p, self.conditions) for s in self.scenarios for p in self.policies]


PARTS = {
    "predicted-best": PagePart(
        "Predicted lengths, measured timing: rivals at their best",
        PREDICTED,
        PAPER,
        (OURS, *STRONGEST),
        versus_best=True,
    ),
    "best": PagePart(
        "Known lengths, exact timing: rivals at their best",
        ONE_SAMPLE,
        PAPER,
        (OURS, *AT_BEST),
        versus_best=True,
    ),
    "kernels": PagePart(
        "On engines with measured kernel tables",
        replace(PREDICTED, seeds=1),
        ON_KERNELS,
        (OURS, *STRONGEST),
        versus_best=True,
    ),
    "known": PagePart("Known lengths, exact timing: vLLM and Sarathi as in the paper", KNOWN, PAPER, MAIN),
    "predicted": PagePart(
        "Predicted lengths, measured timing: vLLM and Sarathi as in the paper", PREDICTED, PAPER, MAIN
    ),
    "bound": PagePart("Share of the bound", ONE_SAMPLE, PAPER, (OURS, "oracle")),
    "four": PagePart("Four replicas", FOUR, SCALED, (OURS,)),
    "papers": PagePart("Rivals as in their papers, without a drafter", ONE_SAMPLE, PAPER, AS_IN_PAPERS),
    "others": PagePart("Scenarios that the paper does not have", replace(PREDICTED, seeds=1), OTHERS, MAIN),
}
