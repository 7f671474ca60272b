"""Turns of chats at a real vLLM with the plug-in: what a sidecar counts as cached is what vLLM finds."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.prompt_marks import prompt_marks
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.telemetry.socket import Continuity, TelemetrySocket
from served.server import NAME, PATIENCE_S, serving

BLOCK_TOKENS = 128
FLAGS = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
SESSIONS, TURNS = 3, 4


class Reported:
    """The content of the engine's reports so far."""

    def __init__(self) -> None:
        self.index, self._continuity = PrefixIndex(), Continuity()
        self.lost = self.count = 0

    def take(self, reports: Sequence[StepReport]) -> None:
        for report in reports:
            lost = self._continuity.lost_before(report)
            self.index.take(report, lost)
            self.lost += lost
            self.count += 1

    def planned_tokens(self, body: dict[str, Any]) -> int:
        found = self.index.longest(prompt_marks(orjson.dumps(body)))
        return 0 if found is None else found.cached_tokens // BLOCK_TOKENS * BLOCK_TOKENS


def chat(session: int, turns: int) -> dict[str, Any]:
    """The prompt of a turn: all messages before it, and one more."""
    contents = [f"session {session} turn {turn} " + "and so on " * 9 for turn in range(2 * turns - 1)]
    roles = [("user", "assistant")[turn % 2] for turn in range(len(contents))]
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]}


@pytest.mark.timeout(1200)
async def test_a_turn_finds_its_planned_cached_tokens(model: Path, tmp_path: Path) -> None:
    reported, path = Reported(), tmp_path / "steps.sock"
    socket = TelemetrySocket(path, reported.take)
    env = {"PENSTOCK_TELEMETRY": str(path)}
    outcomes: list[tuple[int, int]] = []
    with serving(model, tmp_path, *FLAGS, steered=True, blocks=64, env=env) as server:
        for turn in range(1, TURNS + 1):
            for session in range(SESSIONS):
                body, name = chat(session, turn), f"{session}-{turn}"
                planned = reported.planned_tokens(body)
                reported.index.add(name, prompt_marks(orjson.dumps(body)))
                xargs = {"penstock_id": name, "penstock_best_effort": False, "penstock_ttft_s": 60.0}
                answer = await server.chat(**body, max_tokens=4, vllm_xargs=xargs)
                outcomes.append((planned, answer["usage"]["prompt_tokens_details"]["cached_tokens"]))
                count = reported.count
                async with asyncio.timeout(PATIENCE_S):
                    while reported.count < count + 1:  # noqa: ASYNC110  the engine's idle report
                        await asyncio.sleep(0.05)
    socket.close()
    assert not reported.lost
    assert [planned for planned, _ in outcomes] == [found for _, found in outcomes], NAME
    assert sum(found for _, found in outcomes) > SESSIONS * BLOCK_TOKENS
