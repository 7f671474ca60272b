"""An idle pool scales to zero, and scales up for the first request."""

from time import monotonic

import openai

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import MODEL, NAME, NAMESPACE, REPLICAS
from pool_on_cluster.traffic import PROMPT
from pool_on_cluster.waiting import until

TO_ZERO = {"minReplicas": 0, "maxReplicas": REPLICAS, "idleTimeout": "10s", "wakeTimeout": "3m"}


def to_zero_and_up(context: ClusterContext) -> None:
    """An idle pool scales to zero; a request scales it up and is answered."""
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"autoscaling": TO_ZERO}})
    until(lambda: not context.pod_names("replica"), "no replicas left")
    started_s = monotonic()
    with openai.OpenAI(base_url=f"{context.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=20
        )
    assert answer.choices[0].finish_reason == "length", answer
    context.figures["scale_up_from_zero_s"] = round(monotonic() - started_s, 1)
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"autoscaling": None, "replicas": REPLICAS}})
    context.wait_reconciled(REPLICAS)
