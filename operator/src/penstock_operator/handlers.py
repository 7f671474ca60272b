"""What kopf calls: `kopf run -m penstock_operator.handlers`, or `penstock-operator`.

kopf keeps the watches: it logs in, follows pools and their objects through lost connections, and stops
cleanly. Its own bookkeeping (annotations, finalizers, progress in the object) is not used: every handler
here only notes what it was told. So nothing is left behind on pools, and there is nothing to lose when the
operator dies.

Pools need no finalizer. All that a pool owns is in its namespace and has an ownerReference, so Kubernetes
removes it, also while no operator runs.
"""

import os
from typing import Any

import kopf
from penstock_runtime.serving import StartError

from penstock_operator.cluster.kinds import GROUP, POOL, VERSION, WATCHED
from penstock_operator.controller import OWN, Operator
from penstock_operator.options import read_options
from penstock_operator.settings import read_settings

WATCH_S = 290
"""A watch is asked for anew after so long. A connection that died in silence misses its bookmarks before."""


class NoComparison(kopf.DiffBaseStorage):
    """What kopf keeps of an object to tell what has changed in it: nothing, for no handler here asks.

    Its own way copies every object that a watch tells of, twice, which is a tenth of a busy operator's time.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """What of an object counts."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """What counted of it last."""
        return None

    def store(self, **_: Any) -> None:
        """Keep it."""


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Tell kopf how to watch, and begin."""
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoComparison()
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_S
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = 25
    for kind in WATCHED:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = OWN
    options = memo.get("options") or read_options(os.environ)
    settings.scanning.disabled = bool(options.namespaces)
    try:
        memo.operator = Operator(memo.get("settings") or read_settings(os.environ), options)
        await memo.operator.start()
    except StartError as error:
        memo.refusal = str(error)
        raise kopf.PermanentError(memo.refusal) from None


@kopf.on.cleanup()
async def stop(memo: Any, **_: Any) -> None:
    """End."""
    if "operator" in memo:
        await memo.operator.stop()


@kopf.on.event(GROUP, VERSION, POOL.plural)
async def changed(event: kopf.RawEvent, memo: Any, **_: Any) -> None:
    """A pool, or one of its objects, is new, different or gone."""
    memo.operator.note(event["object"], event["type"] == "DELETED")


for _kind in WATCHED:
    kopf.on.event(_kind.group, _kind.version, _kind.plural)(changed)
