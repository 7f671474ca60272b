"""One process of a pool, kept alive: started again where it dies, on its same address, until stopped."""

import asyncio
import os
import signal
from collections import deque
from contextlib import suppress
from typing import Protocol

from penstock_runtime.last_words import LINES, telling_line

from penstock_cli.local.layout import Process
from penstock_cli.local.parent_death import stop_with_parent

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SETTLED_S = 30.0
"""A process that has run for so long starts over with the first pause."""
LONGEST_LINE_BYTES = 64 * 1024
NO_MEMORY = (
    "where nobody killed it, the machine had no memory left: run fewer replicas, or give engines less memory"
)
_CHILD_KILLED = ": -9}"
"""How vLLM's server says it of the process that works for it."""
LOOK_S = 0.05
"""Between two looks whether a process has ended."""


class LogSink(Protocol):
    """Where log lines go."""

    def line(self, name: str, text: str) -> None:
        """One line that a process wrote."""

    def note(self, name: str, text: str) -> None:
        """Something that happened to a process."""


class Child:
    """A process and its restarts.

    exits: how often it has ended without being told to.
    why_it_ended: the last time, in a line: how, and what it said of it.
    """

    def __init__(self, process: Process, sink: LogSink) -> None:
        self.process = process
        self.exits = 0
        self.last_pid = 0
        self.why_it_ended = ""
        self._sink = sink
        self._running: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while not self._stopping:
            started_s = loop.time()
            said: deque[str] = deque(maxlen=LINES)
            code = await self._run_once(said)
            if self._stopping:
                return
            self.exits, self.why_it_ended = self.exits + 1, _why(code, said)
            pause_s = FIRST_PAUSE_S if loop.time() - started_s > SETTLED_S else pause_s
            self._sink.note(
                self.process.name, f"ended ({self.why_it_ended}); starting it again in {pause_s:g} s"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self, said: deque[str]) -> int:
        self._running = running = await asyncio.create_subprocess_exec(
            *self.process.argv,
            env={**os.environ, **self.process.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
            preexec_fn=stop_with_parent,
            limit=LONGEST_LINE_BYTES,
        )
        self.last_pid = running.pid
        assert running.stdout is not None
        lines = asyncio.create_task(self._pass_lines(running.stdout, said))
        await _ended(running)
        _kill_group(running.pid)  # its own children, which an engine that was killed cannot end any more
        await lines
        return await running.wait()

    async def _pass_lines(self, log: asyncio.StreamReader, said: deque[str]) -> None:
        while True:
            try:
                line = await log.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                line = end.partial
                if not line:
                    return
            except asyncio.LimitOverrunError as long:
                line = await log.readexactly(long.consumed)
            text = line.decode(errors="replace").rstrip()
            said.append(text)
            self._sink.line(self.process.name, text)

    async def stop(self, deadline_s: float) -> None:
        """Tell it to stop, wait, and kill it where it does not. It is not started again."""
        self._stopping = True
        running = self._running
        if running is None or running.returncode is not None:
            self._life.cancel()
            await asyncio.wait({self._life})
            return
        running.terminate()
        done, _ = await asyncio.wait({self._life}, timeout=deadline_s)
        if not done:
            self._sink.note(self.process.name, f"did not stop within {deadline_s:g} s; killing it")
            _kill_group(running.pid)
            await asyncio.wait({self._life})


async def _ended(running: asyncio.subprocess.Process) -> None:
    """Wait for the process alone: `wait` may also wait for its pipes, which children of its own hold open."""
    while running.returncode is None:  # noqa: ASYNC110  # asyncio tells nobody but `wait`
        await asyncio.sleep(LOOK_S)


def _kill_group(leader: int) -> None:
    """End what is left of a process's group; it led one of its own (`start_new_session`)."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _why(code: int, said: deque[str]) -> str:
    if code == -signal.SIGKILL:  # who is killed says nothing
        return f"signal 9; {NO_MEMORY}"
    last = telling_line(said) or "it said nothing"
    return f"{_cause(code)}: {last}{f'; {NO_MEMORY}' if _CHILD_KILLED in last else ''}"


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
