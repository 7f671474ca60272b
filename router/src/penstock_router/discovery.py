"""Where the replicas are.

A source is an asynchronous iterator of whole sets, name to address; each replaces the one before. A source
that ends leaves its last set standing. The only one so far is a fixed set, from the command line; one that
watches a cluster's EndpointSlices yields whenever they change.
"""

from collections.abc import AsyncIterator, Mapping

ReplicaSet = Mapping[str, str]
"""Addresses, `host:port`, by replica name."""


async def fixed(replicas: ReplicaSet) -> AsyncIterator[ReplicaSet]:
    """These, for ever."""
    yield replicas
