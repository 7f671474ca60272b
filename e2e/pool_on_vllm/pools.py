"""The pools of the story, as pool files.

Targets follow from this machine's measured speed, so that any machine can meet them. `chat` and `summary` are
those of bench/unmodified; `stream` is judged by its longest gap, with targets sent in the request; `document`
has a TTFT target only.
"""

from pathlib import Path
from typing import Any

import orjson

from pool_on_vllm.servers import BATCH_TOKENS, COMMON, CONTEXT, MODEL, PLAIN, ROOMY, SLOTS
from pool_on_vllm.world import World

OWN_TARGETS = {"allowRequestTargets": True}
DRAFTS = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
FEW_BLOCKS, SHORT_CONTEXT = 13, 1024
"""Memory for 1,536 tokens (vLLM keeps a block for itself): four requests at once, where eight may run."""


def roomy(world: World, backup: str = "best-effort") -> Path:
    """A pool with memory for every load of the story; `backup`: for requests that all replicas reject."""
    chat, summary = world.targets["chat"], world.targets["summary"]
    tiers = [
        {"name": "chat", "slo": {"ttft": ms(chat.ttft_s), "tpot": ms(chat.tpot_s)}},
        {"name": "summary", "slo": {"ttft": ms(summary.ttft_s), "tpot": ms(summary.tpot_s)}},
        {"name": "stream", "slo": {"ttft": "10s", "tpot": "1s", "judge": "max"}, **OWN_TARGETS},
        {"name": "document", "slo": {"ttft": ms(20 * world.prompt_s)}},
        {"name": "batch", "bestEffort": True},
    ]
    engine = {"timeModel": "measured.json", "maxModelLen": CONTEXT, "args": [*COMMON, *ROOMY]}
    scheduling = {"maxRunning": SLOTS, "maxBatchTokens": BATCH_TOKENS}
    spec = {"tiers": tiers, "scheduling": scheduling, "routing": {"backup": backup}}
    return _write(world.file(f"pool-{backup}.yaml"), engine, spec)


def small(world: World) -> Path:
    """Too little memory for all requests, and drafts by n-gram."""
    args = [*COMMON, "--num-gpu-blocks-override", str(FEW_BLOCKS)]
    args += ["--speculative-config", orjson.dumps(NGRAM).decode()]
    engine = {"timeModel": "auto", "profileTimeout": "15s", "maxModelLen": SHORT_CONTEXT, "args": args}
    engine |= {"speculation": {"maxTokens": DRAFTS, "acceptance": 0.6}}
    tiers = [{"name": "chat", "slo": {"ttft": "30s", "tpot": "2s"}}, {"name": "batch", "bestEffort": True}]
    spec = {"tiers": tiers, "scheduling": {"maxRunning": 8, "maxBatchTokens": 512}}
    return _write(world.file("pool-small.yaml"), engine, spec)


def caching(world: World) -> Path:
    """Engines with prefix caches, asked in the order of what they have cached. No turn misses its target."""
    engine = {"timeModel": "measured.json", "maxModelLen": CONTEXT, "args": [*PLAIN, *ROOMY]}
    tiers = [{"name": "chat", "slo": {"ttft": "30s", "tpot": "2s"}}]
    spec = {
        "tiers": tiers,
        "scheduling": {"maxRunning": SLOTS, "maxBatchTokens": BATCH_TOKENS},
        "routing": {"order": "prefix"},
    }
    return _write(world.file("pool-caching.yaml"), engine | {"prefixCaching": True}, spec)


def ms(seconds: float) -> str:
    return f"{round(1e3 * seconds)}ms"


def _write(path: Path, engine: dict[str, Any], spec: dict[str, Any]) -> Path:
    head = {"apiVersion": "penstock.dev/v1alpha1", "kind": "ServingPool", "metadata": {"name": MODEL}}
    common = {"model": {"name": MODEL}, "engine": {"type": "vllm", **engine}}
    document = {**head, "spec": {**common, "defaultTier": spec["tiers"][0]["name"], **spec}}
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))  # JSON is YAML
    return path
