"""The pool files of the test.

Targets follow from this machine's measured speed, so that any machine can meet them. The tiers `chat` and
`summary` are those of bench/unmodified; `stream` is judged by its largest gap, with targets in the request;
`document` has a TTFT target only.
"""

from pathlib import Path
from typing import Any

import orjson

from pool_on_vllm.context import VllmContext
from pool_on_vllm.processes import BATCH_TOKENS, COMMON, CONTEXT, LARGE_MEMORY, MODEL, PLAIN, SLOTS

REQUEST_TARGETS = {"allowRequestTargets": True}
DRAFTS = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
SMALL_MEMORY_BLOCKS, SHORT_CONTEXT = 13, 1024
"""Memory for 1,536 tokens (vLLM reserves one block): four requests at once, though eight may run."""


def large_memory(context: VllmContext, backup: str = "best-effort") -> Path:
    """Write a pool with enough KV memory for every load of the test. Returns its path."""
    chat, summary = context.targets["chat"], context.targets["summary"]
    tiers = [
        {"name": "chat", "slo": {"ttft": ms(chat.ttft_s), "tpot": ms(chat.tpot_s)}},
        {"name": "summary", "slo": {"ttft": ms(summary.ttft_s), "tpot": ms(summary.tpot_s)}},
        {"name": "stream", "slo": {"ttft": "10s", "tpot": "1s", "judge": "max"}, **REQUEST_TARGETS},
        {"name": "document", "slo": {"ttft": ms(20 * context.long_prompt_ttft_s)}},
        {"name": "batch", "bestEffort": True},
    ]
    engine = {"timeModel": "measured.json", "maxModelLen": CONTEXT, "args": [*COMMON, *LARGE_MEMORY]}
    scheduling = {"maxRunning": SLOTS, "maxBatchTokens": BATCH_TOKENS}
    spec = {"tiers": tiers, "scheduling": scheduling, "routing": {"backup": backup}}
    return _write(context.file(f"pool-{backup}.yaml"), engine, spec)


def small_memory(context: VllmContext) -> Path:
    """Write a pool with too little KV memory for all requests, and n-gram speculation. Returns its path."""
    args = [*COMMON, "--num-gpu-blocks-override", str(SMALL_MEMORY_BLOCKS)]
    args += ["--speculative-config", orjson.dumps(NGRAM).decode()]
    engine = {"timeModel": "auto", "profileTimeout": "15s", "maxModelLen": SHORT_CONTEXT, "args": args}
    engine |= {"speculation": {"maxTokens": DRAFTS, "acceptance": 0.6}}
    tiers = [{"name": "chat", "slo": {"ttft": "30s", "tpot": "2s"}}, {"name": "batch", "bestEffort": True}]
    spec = {"tiers": tiers, "scheduling": {"maxRunning": 8, "maxBatchTokens": 512}}
    return _write(context.file("pool-small-memory.yaml"), engine, spec)


def prefix_caching(context: VllmContext) -> Path:
    """Write a pool with prefix caches and the routing order `prefix`. Returns its path."""
    engine = {"timeModel": "measured.json", "maxModelLen": CONTEXT, "args": [*PLAIN, *LARGE_MEMORY]}
    tiers = [{"name": "chat", "slo": {"ttft": "30s", "tpot": "2s"}}]
    spec = {
        "tiers": tiers,
        "scheduling": {"maxRunning": SLOTS, "maxBatchTokens": BATCH_TOKENS},
        "routing": {"order": "prefix"},
    }
    return _write(context.file("pool-prefix-caching.yaml"), engine | {"prefixCaching": True}, spec)


def direct(context: VllmContext) -> Path:
    """Write a pool whose answers do not pass the sidecar. Returns its path."""
    engine = {"timeModel": "measured.json", "maxModelLen": CONTEXT, "args": [*COMMON, *LARGE_MEMORY]}
    tiers = [{"name": "chat", "slo": {"ttft": "30s", "tpot": "2s"}}]
    spec = {"tiers": tiers, "scheduling": {"maxRunning": SLOTS, "maxBatchTokens": BATCH_TOKENS}}
    return _write(context.file("pool-direct.yaml"), engine | {"answerPath": "direct"}, spec)


def ms(seconds: float) -> str:
    return f"{round(1e3 * seconds)}ms"


def _write(path: Path, engine: dict[str, Any], spec: dict[str, Any]) -> Path:
    header = {"apiVersion": "penstock.dev/v1alpha1", "kind": "ServingPool", "metadata": {"name": MODEL}}
    common = {"model": {"name": MODEL}, "engine": {"type": "vllm", **engine}}
    document = {**header, "spec": {**common, "defaultTier": spec["tiers"][0]["name"], **spec}}
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))  # JSON is YAML
    return path
