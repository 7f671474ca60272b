"""Applications of a pool do not share cached prefixes, and clients can still separate their own users."""

import orjson
import pytest
from penstock_pool import Application, Pool
from penstock_routing.request.cache_salt import with_application_salt
from penstock_routing.settings import settings_of
from penstock_runtime.prompt_marks import prompt_marks
from scripted.replica import ScriptedReplica
from scripted.router import RunningRouter, pool_with, running_router

SIMULATED = {"type": "simulated", "timeModel": "llama-3-8b-a100"}
APPLICATIONS = [
    {"name": "ide", "tier": "coder", "keys": {"file": "ide.txt"}},
    {"name": "web", "tier": "chat", "keys": {"file": "web.txt"}},
]


def salt(body: bytes, application: str, own: bytes = b"null") -> str:
    value: str = orjson.loads(with_application_salt(body, application, own))["cache_salt"]
    return value


def test_all_other_fields_of_the_body_are_unchanged() -> None:
    body = b'{"model": "m", "cache_salt": "mine"} \n'
    salted = orjson.loads(with_application_salt(body, "ide", b'"mine"'))
    assert salted == {"model": "m", "cache_salt": salt(body, "ide", b'"mine"')}


def test_a_salt_depends_on_the_application_and_the_clients_own_salt() -> None:
    body = b'{"model": "m"}'
    salts = [
        salt(body, "ide"),
        salt(body, "web"),
        salt(body, "ide", b'"alice"'),
        salt(body, "ide", b'"bob"'),
        salt(body, "web", b'"alice"'),
    ]
    assert len(set(salts)) == len(salts)
    assert salt(body, "ide") == salt(b'{"model": "other"}', "ide"), "it is the same in every request"
    assert salt(b'{"a": 1, "cache_salt": "b"}', "web") == salt(body, "web"), "no client chooses another's"


def test_two_applications_share_no_marks() -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": "x" * 3000}]})
    ide, web = (
        {mark.key for mark in prompt_marks(with_application_salt(body, name, b"null")).marks}
        for name in ("ide", "web")
    )
    assert ide
    assert not ide & web


def pool_of(isolation: str | None = None, applications: bool = True, engine: str = "simulated") -> Pool:
    other = {"type": engine, "image": "any", "timeModel": "llama-3-8b-a100"}
    kind = SIMULATED if engine == "simulated" else other
    said = {} if isolation is None else {"prefixIsolation": isolation}
    some = {"applications": APPLICATIONS} if applications else {}
    return pool_with(engine={**kind, **said}, **some)


@pytest.mark.parametrize(
    ("pool", "isolates"),
    [
        (pool_of(), True),
        (pool_of("none"), False),
        (pool_of(applications=False), False),
        (pool_of("application", applications=False), False),
        (pool_of(engine="openai"), False),
        (pool_of("application", engine="openai"), True),
    ],
    ids=["by default", "none", "no applications", "application without any", "openai", "openai by choice"],
)
def test_pools_with_applications_isolate_their_caches(pool: Pool, isolates: bool) -> None:
    assert settings_of(pool).isolates is isolates


async def salts_sent(router: RunningRouter, replica: ScriptedReplica, **body: str) -> list[str | None]:
    found = []
    for key in ("sk-ide", "sk-web"):
        reply = await router.chat({"authorization": f"Bearer {key}"}, **body)
        assert reply.status_code == 200
        found.append(orjson.loads(replica.parts[-1].submit.body).get("cache_salt"))
    return found


async def test_requests_to_replicas_have_the_salt_of_their_application() -> None:
    replica, pool = ScriptedReplica("r0"), pool_of()
    keys: dict[str, Application] = {f"sk-{each.name}": each for each in pool.spec.applications}
    async with running_router(replica, pool=pool, keys=keys) as router:
        ide, web = await salts_sent(router, replica, cache_salt="mine")
        assert None not in (ide, web)
        assert len({ide, web, "mine"}) == 3
    replica, pool = ScriptedReplica("r0"), pool_of("none")
    async with running_router(replica, pool=pool, keys=keys) as router:
        assert await salts_sent(router, replica) == [None, None]
        assert await salts_sent(router, replica, cache_salt="mine") == ["mine", "mine"]
