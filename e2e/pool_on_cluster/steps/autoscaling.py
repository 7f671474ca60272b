"""An idle pool scales to zero; the first request starts a replica, and waits for it."""

from time import monotonic

import openai

from pool_on_cluster.pool import MODEL, NAME, NAMESPACE, REPLICAS
from pool_on_cluster.traffic import PROMPT
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World

TO_ZERO = {"minReplicas": 0, "maxReplicas": REPLICAS, "idleTimeout": "10s", "wakeTimeout": "3m"}


def to_zero_and_back(world: World) -> None:
    """An idle pool scales to zero; one request wakes it and waits until it is answered."""
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"autoscaling": TO_ZERO}})
    until(lambda: not world.pod_names("replica"), "no replicas left")
    asked_s = monotonic()
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=20
        )
    assert answer.choices[0].finish_reason == "length", answer
    world.figures["wake_s"] = round(monotonic() - asked_s, 1)
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"autoscaling": None, "replicas": REPLICAS}})
    world.settled(REPLICAS)
