"""Selects the engines of `penstock up`, and checks that external ones answer."""

import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from penstock_pool import Pool
from penstock_runtime.engine_key import VARIABLE, bearer, engine_key

from penstock_cli.failure import NO_REPLICAS, Failure

ANSWER_TIMEOUT_S = 5.0
"""Timeout of a request to an external engine."""

STARTED_TYPES = ("simulated", "vllm")
"""Engine types that this command starts."""


def engine_urls(given: str | None) -> tuple[str, ...]:
    """Return the URLs of external engines; empty if engines are to be started. Raises Failure."""
    if given is None or given in STARTED_TYPES:
        return ()
    urls = tuple(url.strip().rstrip("/").removesuffix("/v1") for url in given.split(","))
    for url in urls:
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc:
            raise Failure(
                f'--engine: "{url}" is not a URL; write for example http://10.0.0.5:8000', bad_input=True
            )
    return urls


def check_engines(pool: Pool, file: Path, urls: tuple[str, ...], replicas: int | None) -> None:
    """Check that the pool's engines can be started or answer. Raises Failure."""
    if not urls and pool.spec.engine.type not in STARTED_TYPES:
        raise Failure(
            f'{file}: spec.engine.type: "{pool.spec.engine.type}" is not started by this command; give the '
            f"URL of a running engine with --engine, or give --engine {' or '.join(STARTED_TYPES)}",
            bad_input=True,
        )
    if not urls and replicas is None and pool.spec.initial_replicas == 0:
        raise Failure(f"{file}: {NO_REPLICAS}", bad_input=True)
    if urls and replicas is not None and replicas != len(urls):
        raise Failure(f"--replicas {replicas}: --engine lists {len(urls)} engines", bad_input=True)
    for url in urls:
        _check_answers(url)


def _check_answers(url: str) -> None:
    try:
        request = urllib.request.Request(f"{url}/v1/models", headers=bearer(engine_key(os.environ)))
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise Failure(
                f"--engine {url}: rejects the API key; set {VARIABLE} to the engine's key"
            ) from None
        raise Failure(f"--engine {url}: answers {error.code} to /v1/models; is it an engine?") from None
    except urllib.error.URLError as error:
        raise Failure(f"--engine {url}: no engine answers there ({error.reason})") from None
    except (OSError, ValueError, HTTPException) as error:
        raise Failure(f"--engine {url}: no engine answers there ({str(error).strip()})") from None
