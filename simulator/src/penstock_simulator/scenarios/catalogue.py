"""The scenarios there are.

The paper's six run on its own engine's constants and memory: OPT-6.7B with an OPT-125m that drafts for it,
ToolLLaMA and R1-Distill without. Its Table 4 turns out to describe recordings that are public: ChatBot and
Coder are the requests of Azure's trace of November 2023, within the window, that fit into OPT's context of
2,048 tokens together with their answers, and Summarizer those of the arXiv set that do. (The table counts the
tokens after the first, ours count all.) So their lengths are drawn from those very pairs. Reasoning and
ToolLLM are drawn by the table's figures.

Arrivals are all of the window's, longer requests' too: how bursty it is should not depend on what fits.

Targets are the paper's [Table 3]: tight is a first token within 3 times what an idle replica takes and 50 ms
a token, loose is 5 times and 100 ms; the pace is judged by tens of tokens.
"""

from collections.abc import Mapping
from dataclasses import replace

from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.timing.builtin_models import kv_cache_tokens
from penstock_core.timing.speculation import Speculation

from penstock_simulator.scenarios.asks import as_recorded, pairs, reasoning, tool_sessions
from penstock_simulator.scenarios.recording import Window
from penstock_simulator.scenarios.scenario import Scenario, Stream

TIGHT_TTFT, LOOSE_TTFT = 3.0, 5.0
TIGHT_TPOT_S, LOOSE_TPOT_S = 0.050, 0.100

CHATTING = Window("azure-conv", 0, 300, 300)
SUMMARISING = Window("azure-conv", 0, 300, 300, phase=0.5)
"""As chatting, half a period on: beside it in one scenario, no two requests come at once by design."""
THINKERS = Window("azure-conv", 0, 100, 300)
"""Every request lasts minutes: a third of them keep a replica busy for half an hour."""
CODING = Window("azure-code", 0, 300, 300)
TOOLS = Window("azure-code", 150, 100, 100)
LONG_CONTEXT = Window("mooncake", 0, 400, 1000)
THINKING_CLIENTS = Window("servegen-reasoning", 0, 120, 600)

OPT_CONTEXT_TOKENS = 2048
ANY_TOKENS = 1 << 20
ON_ENGINE = "@"
"""Between a scenario's name and that of the engine it runs on instead of its own."""

OPT, OPT_KV_TOKENS = "slos-serve-opt-6.7b-a100", 43_296
TOOL_LLAMA = "slos-serve-toolllama-7b-a100"
R1_DISTILL = "slos-serve-r1-distill-1.5b-a100"
LLAMA = "llama-3-8b-a100"
OPT_DRAFTER = Speculation(max_tokens=10, acceptance=0.7)


def _tier(name: str, ttft: float, tpot_s: float, answer_tpot_s: float | None = None) -> Tier:
    return Tier(name, Slo(ttft_slowdown=ttft, tpot_s=tpot_s, judge=Judge.WINDOW, answer_tpot_s=answer_tpot_s))


def _named(*tiers: Tier) -> Mapping[str, Tier]:
    return {tier.name: tier for tier in tiers}


def _on_opt(name: str, about: str, tiers: Mapping[str, Tier], *streams: Stream) -> Scenario:
    return Scenario(name, about, tiers, streams, OPT, OPT_KV_TOKENS, OPT_CONTEXT_TOKENS, OPT_DRAFTER)


def _on(
    model: str,
    name: str,
    about: str,
    tiers: Mapping[str, Tier],
    stream: Stream,
    *,
    max_output_tokens: int = 4096,
) -> Scenario:
    return Scenario(name, about, tiers, (stream,), model, kv_cache_tokens(model), max_output_tokens)


CHAT_TIER = _tier("chat", LOOSE_TTFT, LOOSE_TPOT_S)
CODER_TIER = _tier("coder", LOOSE_TTFT, TIGHT_TPOT_S)
SUMMARY_TIER = _tier("summary", TIGHT_TTFT, LOOSE_TPOT_S)

CHAT = Stream(CHATTING, pairs("chat", "azure-conv", OPT_CONTEXT_TOKENS))
CODE = Stream(CODING, pairs("coder", "azure-code", OPT_CONTEXT_TOKENS))
SUMMARIES = Stream(SUMMARISING, pairs("summary", "arxiv-lengths", OPT_CONTEXT_TOKENS))

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _on_opt("chatbot", "steady arrivals, long answers; bound by KV memory", _named(CHAT_TIER), CHAT),
        _on_opt("coder", "bursts of short answers at a tight pace", _named(CODER_TIER), CODE),
        _on_opt(
            "summarizer", "long prompts, first tokens due soon; memory again", _named(SUMMARY_TIER), SUMMARIES
        ),
        _on(
            TOOL_LLAMA,
            "toolllm",
            "bursts of sessions: calls of tools in a loop at a tight pace, then an answer at a loose one",
            _named(
                _tier("tool", TIGHT_TTFT, TIGHT_TPOT_S),
                _tier("tool-loop", TIGHT_TTFT, TIGHT_TPOT_S),
                _tier("tool-final", TIGHT_TTFT, LOOSE_TPOT_S),
            ),
            Stream(TOOLS, tool_sessions("tool", "tool-loop", "tool-final")),
        ),
        _on(
            R1_DISTILL,
            "reasoning",
            "minutes of thought at a tight pace, then an answer at a loose one",
            _named(_tier("reasoning", TIGHT_TTFT, TIGHT_TPOT_S, LOOSE_TPOT_S)),
            Stream(THINKERS, reasoning("reasoning")),
            max_output_tokens=16_384,
        ),
        _on_opt(
            "mixed",
            "chatbot, coder and summarizer on one replica",
            _named(CHAT_TIER, CODER_TIER, SUMMARY_TIER),
            CHAT,
            CODE,
            SUMMARIES,
        ),
        _on(
            LLAMA,
            "arxiv",
            "summaries of whole articles on Llama-3-8B",
            _named(SUMMARY_TIER),
            Stream(SUMMARISING, pairs("summary", "arxiv-lengths", ANY_TOKENS)),
        ),
        # A slowdown, since prompts differ a thousandfold: what is late for one is out of reach for another.
        _on(
            LLAMA,
            "mooncake",
            "a long-context assistant on Llama-3-8B: 15,000 tokens of prompt on average",
            _named(_tier("long-context", LOOSE_TTFT, LOOSE_TPOT_S)),
            Stream(LONG_CONTEXT, as_recorded("long-context")),
        ),
        _on(
            LLAMA,
            "servegen-reasoning",
            "the clients of a public reasoning service on Llama-3-8B; some think for 20,000 tokens",
            _named(_tier("reasoning", LOOSE_TTFT, TIGHT_TPOT_S, LOOSE_TPOT_S)),
            Stream(THINKING_CLIENTS, as_recorded("reasoning")),
            max_output_tokens=32_768,
        ),
    )
}


class UnknownScenario(KeyError):
    """No scenario has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no scenario is called '{self.name}'; there are: {', '.join(SCENARIOS)}"


def scenario(name: str) -> Scenario:
    """Return the scenario of this name, with `NAME@ENGINE` on another built-in engine.

    The other engine has its own speed and KV memory, and the scenario's drafter where there is one. Raises
    UnknownScenario, UnknownTimeModel.
    """
    workload, _, engine = name.partition(ON_ENGINE)
    try:
        own = SCENARIOS[workload]
    except KeyError:
        raise UnknownScenario(workload) from None
    if not engine:
        return own
    return replace(own, name=name, time_model=engine, kv_tokens=kv_cache_tokens(engine))
