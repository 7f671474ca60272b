"""Clients through the ingress: the official `openai` client, and `penstock replay`."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import openai

from pool_on_cluster.context import ROOT, ClusterContext
from pool_on_cluster.pool import MODEL, document
from pool_on_cluster.traffic import PROMPT
from pool_on_cluster.waiting import until

ANSWER_TOKENS = 200


def official_client(context: ClusterContext) -> None:
    """The official openai client gets models, a chat answer and a completion."""
    with _openai_client(context) as client:
        until(lambda: serves_model(client), "the pool's model is listed through the ingress")
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=20
        )
        assert chat.choices[0].message.content and chat.usage and chat.usage.completion_tokens == 20, chat
        completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=10)
        assert completion.choices[0].text and completion.choices[0].finish_reason == "length", completion


def _openai_client(context: ClusterContext) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{context.url}/v1", api_key="none", max_retries=0)


def serves_model(client: openai.OpenAI) -> bool:
    """Return whether the pool lists its model."""
    try:
        return MODEL in [model.id for model in client.models.list()]
    except openai.APIError:
        return False


def streaming_through_ingress(context: ClusterContext) -> None:
    """An answer streams through the ingress token by token, without buffering."""
    with _openai_client(context) as client:
        started_s = monotonic()
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=ANSWER_TOKENS,
            stream=True,
        )
        times_s = [monotonic() - started_s for chunk in stream if chunk.choices]
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    context.figures["stream"] = {
        "chunks": len(times_s),
        "first_s": round(times_s[0], 3),
        "last_s": round(times_s[-1], 3),
        "longest_gap_s": round(max(gaps_s), 3),
    }
    assert len(times_s) >= ANSWER_TOKENS / 10, f"{len(times_s)} chunks for {ANSWER_TOKENS} tokens"
    assert max(gaps_s) < (times_s[-1] - times_s[0]) / 2, f"chunks arrived in bursts: {times_s}"
    assert times_s[0] < times_s[-1] / 2, (
        f"the first chunk arrived after {times_s[0]:.2f} of {times_s[-1]:.2f} s"
    )


def replayed_trace(context: ClusterContext) -> None:
    """`penstock replay` sends a recorded trace through the ingress and judges every request."""
    pool = context.results / "pool.yaml"
    pool.write_text(json.dumps(document(context.cluster.ingress_class)))
    report = context.results / "replay.json"
    trace = ROOT / "examples" / "azure-excerpt.csv.gz"
    penstock = Path(sys.executable).with_name("penstock")
    command = [str(penstock), "replay", "--trace", str(trace), "--url", context.url, "--file", str(pool)]
    flags = ["--tier-map", "coder=chat", "--rate", "2", "--duration", "20", "--json", str(report)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"replay: {done.stdout}{done.stderr}"
    results: dict[str, Any] = json.loads(report.read_text())
    context.figures["replay"] = {
        name: results[name] for name in ("requests", "attainment", "admitted_attainment")
    }
    assert results["requests"] > 10, results
