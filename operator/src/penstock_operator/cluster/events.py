"""Kubernetes Events about a pool: what `kubectl describe pool` ends with.

An Event's name is made of what it says. So the same news, told again by a restarted operator or after a
relapse, moves the one Event's time instead of making another.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

from penstock_operator.manifest import Manifest
from penstock_operator.names import FIELD_MANAGER

LONGEST_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class News:
    """Something to tell about a pool."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def event_of(pool: Manifest, news: News, now: str) -> Manifest:
    """The Event that tells it. now: RFC 3339."""
    metadata = pool["metadata"]
    said = f"{metadata['uid']}/{news.type}/{news.reason}/{news.message}"
    digest = hashlib.sha256(said.encode()).hexdigest()[:12]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": pool["apiVersion"],
            "kind": pool["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": news.type,
        "reason": news.reason,
        "message": news.message[:LONGEST_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
