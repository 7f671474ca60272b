"""Clients through the ingress: the official one, and a recorded trace."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import openai

from pool_on_cluster.pool import MODEL, document
from pool_on_cluster.traffic import PROMPT
from pool_on_cluster.waiting import until
from pool_on_cluster.world import ROOT, World

LONG_ANSWER_TOKENS = 200


def official_client(world: World) -> None:
    """The official openai client gets models, a chat answer and a completion."""
    with _client(world) as client:
        until(lambda: _models(client), "the pool's model behind the ingress")
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=20
        )
        assert chat.choices[0].message.content and chat.usage and chat.usage.completion_tokens == 20, chat
        completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=10)
        assert completion.choices[0].text and completion.choices[0].finish_reason == "length", completion


def _client(world: World) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)


def _models(client: openai.OpenAI) -> bool:
    try:
        return MODEL in [model.id for model in client.models.list()]
    except openai.APIError:
        return False


def answers_stream_through_the_ingress(world: World) -> None:
    """An answer comes token by token: nothing on the way buffers it."""
    with _client(world) as client:
        began_s = monotonic()
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=LONG_ANSWER_TOKENS,
            stream=True,
        )
        at_s = [monotonic() - began_s for chunk in stream if chunk.choices]
    gaps_s = [later - earlier for earlier, later in pairwise(at_s)]
    world.figures["stream"] = {
        "chunks": len(at_s),
        "first_s": round(at_s[0], 3),
        "last_s": round(at_s[-1], 3),
        "longest_gap_s": round(max(gaps_s), 3),
    }
    assert len(at_s) >= LONG_ANSWER_TOKENS / 10, f"{len(at_s)} chunks for {LONG_ANSWER_TOKENS} tokens"
    assert max(gaps_s) < (at_s[-1] - at_s[0]) / 2, f"chunks came in heaps: {at_s}"
    assert at_s[0] < at_s[-1] / 2, f"the first chunk came after {at_s[0]:.2f} of {at_s[-1]:.2f} s"


def replayed_trace(world: World) -> None:
    """`penstock replay` sends a recorded trace through the ingress, and judges every request."""
    pool = world.results / "pool.yaml"
    pool.write_text(json.dumps(document(world.place.ingress_class)))
    judgement = world.results / "replay.json"
    trace = ROOT / "examples" / "azure-excerpt.csv.gz"
    penstock = Path(sys.executable).with_name("penstock")
    command = [str(penstock), "replay", "--trace", str(trace), "--url", world.url, "--file", str(pool)]
    flags = ["--tier-map", "coder=chat", "--rate", "2", "--duration", "20", "--json", str(judgement)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"replay: {done.stdout}{done.stderr}"
    judged: dict[str, Any] = json.loads(judgement.read_text())
    world.figures["replay"] = {
        name: judged[name] for name in ("requests", "attainment", "admitted_attainment")
    }
    assert judged["requests"] > 10, judged
