"""The catalogue of scenarios.

The paper's six run with its engine constants and KV memory: OPT-6.7B with OPT-125m as drafter, ToolLLaMA and
R1-Distill without. Table 4 describes public recordings: ChatBot and Coder are the requests of Azure's trace
of November 2023 that fit OPT's context of 2,048 tokens together with their answers, and Summarizer those of
the arXiv set. (The table counts tokens after the first; here all are counted.) Their lengths are drawn from
these recorded pairs. Reasoning and ToolLLM are drawn from the table's figures.

Arrival times include those of longer requests, so that burstiness does not depend on what fits.

Targets are the paper's [Table 3]: tight is TTFT within 3 times an idle prefill and TPOT of 50 ms, loose is 5
times and 100 ms; TPOT is judged over windows of ten tokens.
"""

from collections.abc import Mapping
from dataclasses import replace

from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.timing.builtin_models import kv_cache_tokens
from penstock_core.timing.speculation import Speculation

from penstock_simulator.scenarios.recording import RecordingWindow
from penstock_simulator.scenarios.request_sources import as_recorded, pairs, reasoning, tool_sessions
from penstock_simulator.scenarios.scenario import RequestStream, Scenario
from penstock_simulator.scenarios.sessions import RecordedSessions

TIGHT_TTFT, LOOSE_TTFT = 3.0, 5.0
"""TTFT targets as multiples of the prefill time."""
TIGHT_TPOT_S, LOOSE_TPOT_S = 0.050, 0.100
"""TPOT targets."""

CHAT_WINDOW = RecordingWindow("azure-conv", 0, 300, 300)
SUMMARY_WINDOW = RecordingWindow("azure-conv", 0, 300, 300, phase=0.5)
"""Like CHAT_WINDOW, offset by half a period, so that in a joint scenario their arrivals do not coincide."""
REASONING_WINDOW = RecordingWindow("azure-conv", 0, 100, 300)
"""A third of CHAT_WINDOW, because every request lasts minutes."""
CODE_WINDOW = RecordingWindow("azure-code", 0, 300, 300)
TOOL_WINDOW = RecordingWindow("azure-code", 150, 100, 100)
LONG_CONTEXT_WINDOW = RecordingWindow("mooncake", 0, 400, 1000)
REASONING_CLIENTS_WINDOW = RecordingWindow("servegen-reasoning", 0, 120, 600)

OPT_CONTEXT_TOKENS = 2048
"""Longest context of OPT."""
ANY_TOKENS = 1 << 20
"""More than any request of a recording has."""
ON_ENGINE = "@"
"""Separates a scenario's name from the engine that it runs on instead of its own."""

OPT, OPT_KV_TOKENS = "slos-serve-opt-6.7b-a100", 43_296
TOOL_LLAMA = "slos-serve-toolllama-7b-a100"
R1_DISTILL = "slos-serve-r1-distill-1.5b-a100"
LLAMA, LLAMA_H100 = "llama-3-8b-a100", "llama-3-8b-h100"
TURN_SLO = Slo(ttft_s=2.0, ttft_slowdown=LOOSE_TTFT, tpot_s=TIGHT_TPOT_S, judge=Judge.WINDOW)
"""A slowdown of 5 is longer than 2 s for prompts of more than 15,000 tokens."""

MOST_ANSWER_TOKENS = 32_768
"""Longer than any answer of the recorded sessions."""

OPT_DRAFTER = Speculation(max_tokens=10, acceptance=0.7)


def _tier(name: str, ttft: float, tpot_s: float, answer_tpot_s: float | None = None) -> Tier:
    return Tier(name, Slo(ttft_slowdown=ttft, tpot_s=tpot_s, judge=Judge.WINDOW, answer_tpot_s=answer_tpot_s))


def _named(*tiers: Tier) -> Mapping[str, Tier]:
    return {tier.name: tier for tier in tiers}


def _on_opt(name: str, about: str, tiers: Mapping[str, Tier], *streams: RequestStream) -> Scenario:
    return Scenario(name, about, tiers, streams, OPT, OPT_KV_TOKENS, OPT_CONTEXT_TOKENS, OPT_DRAFTER)


def _on(
    model: str,
    name: str,
    about: str,
    tiers: Mapping[str, Tier],
    stream: RequestStream,
    *,
    max_output_tokens: int = 4096,
) -> Scenario:
    return Scenario(name, about, tiers, (stream,), model, kv_cache_tokens(model), max_output_tokens)


def _with_prefixes(name: str, about: str, sessions: RecordedSessions, block_tokens: int) -> Scenario:
    return Scenario(
        name,
        about,
        _named(Tier(sessions.tier, TURN_SLO)),
        (),
        LLAMA_H100,
        kv_cache_tokens(LLAMA_H100),
        max_output_tokens=MOST_ANSWER_TOKENS,
        sessions=sessions,
        prefix_caching=True,
        block_tokens=block_tokens,
    )


CHAT_TIER = _tier("chat", LOOSE_TTFT, LOOSE_TPOT_S)
CODER_TIER = _tier("coder", LOOSE_TTFT, TIGHT_TPOT_S)
SUMMARY_TIER = _tier("summary", TIGHT_TTFT, LOOSE_TPOT_S)

CHAT = RequestStream(CHAT_WINDOW, pairs("chat", "azure-conv", OPT_CONTEXT_TOKENS))
CODE = RequestStream(CODE_WINDOW, pairs("coder", "azure-code", OPT_CONTEXT_TOKENS))
SUMMARIES = RequestStream(SUMMARY_WINDOW, pairs("summary", "arxiv-lengths", OPT_CONTEXT_TOKENS))

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _on_opt("chatbot", "steady arrivals, long answers; bound by KV memory", _named(CHAT_TIER), CHAT),
        _on_opt("coder", "bursts of short answers with a tight TPOT", _named(CODER_TIER), CODE),
        _on_opt(
            "summarizer",
            "long prompts, tight TTFT; bound by KV memory",
            _named(SUMMARY_TIER),
            SUMMARIES,
        ),
        _on(
            TOOL_LLAMA,
            "toolllm",
            "bursts of sessions: tool calls in a loop with a tight TPOT, then an answer with a loose one",
            _named(
                _tier("tool", TIGHT_TTFT, TIGHT_TPOT_S),
                _tier("tool-loop", TIGHT_TTFT, TIGHT_TPOT_S),
                _tier("tool-final", TIGHT_TTFT, LOOSE_TPOT_S),
            ),
            RequestStream(TOOL_WINDOW, tool_sessions("tool", "tool-loop", "tool-final")),
        ),
        _on(
            R1_DISTILL,
            "reasoning",
            "minutes of thinking with a tight TPOT, then an answer with a loose one",
            _named(_tier("reasoning", TIGHT_TTFT, TIGHT_TPOT_S, LOOSE_TPOT_S)),
            RequestStream(REASONING_WINDOW, reasoning("reasoning")),
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
            RequestStream(SUMMARY_WINDOW, pairs("summary", "arxiv-lengths", ANY_TOKENS)),
        ),
        # TTFT is a slowdown, because prompt lengths differ by a factor of a thousand.
        _on(
            LLAMA,
            "mooncake",
            "a long-context assistant on Llama-3-8B: 15,000 tokens of prompt on average",
            _named(_tier("long-context", LOOSE_TTFT, LOOSE_TPOT_S)),
            RequestStream(LONG_CONTEXT_WINDOW, as_recorded("long-context")),
        ),
        _on(
            LLAMA,
            "servegen-reasoning",
            "clients of a public reasoning service on Llama-3-8B; some answers have 20,000 thinking tokens",
            _named(_tier("reasoning", LOOSE_TTFT, TIGHT_TPOT_S, LOOSE_TPOT_S)),
            RequestStream(REASONING_CLIENTS_WINDOW, as_recorded("reasoning")),
            max_output_tokens=32_768,
        ),
        _with_prefixes(
            "agents",
            "turns of coding agents on Llama-3-8B: prompts of 66,000 tokens, 95 % of them repeated",
            RecordedSessions("agents", "agent", 20, 64),
            block_tokens=64,
        ),
        _with_prefixes(
            "swe",
            "agents that repair software on Llama-3-8B: prompts of 6,100 tokens, 93 % of them repeated",
            RecordedSessions("swe", "agent", 100, 16),
            block_tokens=16,
        ),
        _with_prefixes(
            "web",
            "teams of agents in the web on Llama-3-8B: prompts of 2,100 tokens, 84 % of them repeated",
            RecordedSessions("web", "agent", 60, 16),
            block_tokens=16,
        ),
        _with_prefixes(
            "rag-chat",
            "questions about long documents on Llama-3-8B: prompts of 15,000 tokens, 64 % of them repeated",
            RecordedSessions("rag-chat", "chat", 600, 512),
            block_tokens=64,
        ),
    )
}


class UnknownScenario(KeyError):
    """There is no scenario of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"unknown scenario '{self.name}'; known: {', '.join(SCENARIOS)}"


def scenario(name: str) -> Scenario:
    """Return the scenario of this name, with `NAME@ENGINE` on another built-in engine.

    The other engine has its own speed and KV memory, and the scenario's drafter, if any. Raises
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
