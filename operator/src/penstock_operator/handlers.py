"""Handlers for kopf: `kopf run -m penstock_operator.handlers`, or `penstock-operator`.

kopf logs in and maintains the watches of pools and their objects. Its own state in objects (annotations,
finalizers, progress) is not used: each handler only updates the cache. So kopf does not write to pools, and
no state is lost if the operator ends.

Pools need no finalizer. All objects of a pool are in its namespace and have an ownerReference, so Kubernetes
deletes them, also while no operator runs.
"""

import os
from typing import Any

import kopf
from penstock_runtime.serving import StartError

from penstock_operator.cluster.kinds import GROUP, POOL, VERSION, WATCHED
from penstock_operator.cluster.login import connection_of_cluster
from penstock_operator.controller import OWN, Operator
from penstock_operator.options import read_options
from penstock_operator.settings import read_settings

WATCH_TIMEOUT_S = 290
"""Seconds after which a watch is renewed. A dead connection is detected earlier, by missing bookmarks."""
CONNECT_TIMEOUT_S = 10
"""Seconds in which the API server must accept a watch's connection."""
REQUEST_TIMEOUT_S = 30
"""Seconds in which the API server must answer kopf's other requests."""
EXIT_TIMEOUT_S = 25
"""Seconds after which kopf ends an operator that does not stop; pods get 30."""


class NoDiffBase(kopf.DiffBaseStorage):
    """Disables kopf's comparison of objects, which no handler uses.

    It copies every object of a watch event twice, which is a tenth of a busy operator's CPU time.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing to compare."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return nothing stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Configure kopf, and start the operator."""
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_TIMEOUT_S
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.process.ultimate_exiting_timeout = EXIT_TIMEOUT_S
    for kind in WATCHED:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = OWN
    options = memo.get("options") or read_options(os.environ)
    settings.scanning.disabled = bool(options.namespaces)
    try:
        memo.operator = Operator(memo.get("settings") or read_settings(os.environ), options)
        await memo.operator.start()
    except StartError as error:
        memo.start_error = str(error)
        raise kopf.PermanentError(memo.start_error) from None


@kopf.on.login()
def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
    """Return the connection to the API server that kopf uses until its credentials are refused."""
    return connection_of_cluster(settings)


@kopf.on.cleanup()
async def stop(memo: Any, **_: Any) -> None:
    """Stop the operator."""
    if "operator" in memo:
        await memo.operator.stop()


@kopf.on.event(GROUP, VERSION, POOL.plural)
async def changed(event: kopf.RawEvent, memo: Any, **_: Any) -> None:
    """Handle a watch event of a pool or one of its objects."""
    memo.operator.handle_event(event["object"], event["type"] == "DELETED")


for _kind in WATCHED:
    kopf.on.event(_kind.group, _kind.version, _kind.plural)(changed)
