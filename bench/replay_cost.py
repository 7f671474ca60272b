"""Measures the replay client's CPU time per streamed token, because it shares its machine with the server.

    python bench/replay_cost.py

A server in another process streams one event per write, as an engine does in every iteration; the client
replays against it. Only the client's own CPU time counts.
"""

import argparse
import asyncio
import multiprocessing
import resource
import tempfile
from multiprocessing.synchronize import Event
from pathlib import Path

import uvloop
from aiohttp import web
from penstock_cli.local.ports import free_ports
from penstock_cli.replay.run import ReplaySettings, replay
from rich.console import Console

EVENT = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'
STEP_S = 0.02


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m"}]})


async def completions(request: web.Request) -> web.StreamResponse:
    tokens = (await request.json())["max_tokens"]
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(tokens):
        await response.write(EVENT)
        await asyncio.sleep(STEP_S)
    await response.write(
        b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % tokens
    )
    return response


def serve(port: int, ready: Event) -> None:
    async def run() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/completions", completions)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        ready.set()
        await asyncio.Event().wait()

    uvloop.run(run())


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500)
    flags = parser.parse_args()

    spawn = multiprocessing.get_context("spawn")
    (port,), ready = free_ports(1, "127.0.0.1"), spawn.Event()
    server = spawn.Process(target=serve, args=(port, ready), daemon=True)
    server.start()
    ready.wait()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        rows = "".join(f"0,500,{flags.tokens}\n" for _ in range(flags.streams))
        trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
        before_s = cpu_s()
        report = uvloop.run(replay(ReplaySettings(trace, f"http://127.0.0.1:{port}"), Console(quiet=True)))
        used_s = cpu_s() - before_s
    server.kill()
    tokens = flags.streams * flags.tokens
    print(
        f"{used_s / tokens * 1e6:.1f} µs CPU a token; {flags.streams} streams of {flags.tokens} tokens, "
        f"{report.tally.all.met} answered"
    )


if __name__ == "__main__":
    main()
