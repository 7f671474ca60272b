"""One process of a pool, which is restarted on the same address when it ends, until it is stopped."""

import asyncio
import os
import signal
from collections import deque
from contextlib import suppress
from typing import Protocol

from penstock_runtime.exit_reason import LINES, reason_line

from penstock_cli.local.layout import ProcessSpec
from penstock_cli.local.parent_death import stop_with_parent

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""First and longest pause before a process that ended is started again; it doubles each time."""
SETTLED_S = 30.0
"""After running for this time, the restart pause is reset to the first."""
LONGEST_LINE_BYTES = 64 * 1024
"""Buffer of a process's output, and so its longest line."""
NO_MEMORY = (
    "if it was not killed by a user, the machine ran out of memory: run fewer replicas, "
    "or give engines less memory"
)
_CHILD_KILLED = ": -9}"
"""How vLLM's server reports that its engine process was killed."""
POLL_S = 0.05
"""Interval of checks whether a process has ended."""


class LogSink(Protocol):
    """Destination of log lines."""

    def line(self, name: str, text: str) -> None:
        """Write one log line of a process."""

    def note(self, name: str, text: str) -> None:
        """Write an event of a process, such as a restart."""


class ChildProcess:
    """A process and its restarts.

    exits: number of times it has ended without `stop`.
    exit_reason: reason of its last end in one line: the exit status, and the cause in its log.
    """

    def __init__(self, process: ProcessSpec, sink: LogSink) -> None:
        self.process = process
        self.exits = 0
        self.last_pid = 0
        self.exit_reason = ""
        self._sink = sink
        self._running: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._task = asyncio.create_task(self._run_and_restart())

    async def _run_and_restart(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while not self._stopping:
            started_s = loop.time()
            log_tail: deque[str] = deque(maxlen=LINES)
            code = await self._run_once(log_tail)
            if self._stopping:
                return
            self.exits, self.exit_reason = self.exits + 1, _describe_exit(code, log_tail)
            pause_s = FIRST_PAUSE_S if loop.time() - started_s > SETTLED_S else pause_s
            self._sink.note(self.process.name, f"ended ({self.exit_reason}); restarting in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self, log_tail: deque[str]) -> int:
        self._running = running = await asyncio.create_subprocess_exec(
            *self.process.argv,
            env={**os.environ, **self.process.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=_lead_group_until_parent_ends,
            limit=LONGEST_LINE_BYTES,
        )
        self.last_pid = running.pid
        assert running.stdout is not None
        lines = asyncio.create_task(self._pass_lines(running.stdout, log_tail))
        await _wait_for_exit(running)
        _kill_group(running.pid)  # its children, which a killed engine cannot end
        await lines
        return await running.wait()

    async def _pass_lines(self, log: asyncio.StreamReader, log_tail: deque[str]) -> None:
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
            log_tail.append(text)
            self._sink.line(self.process.name, text)

    async def stop(self, deadline_s: float) -> None:
        """Stop the process for good: send SIGTERM, and SIGKILL after `deadline_s` seconds."""
        self._stopping = True
        running = self._running
        if running is None or running.returncode is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            return
        running.terminate()
        done, _ = await asyncio.wait({self._task}, timeout=deadline_s)
        if not done:
            self._sink.note(self.process.name, f"did not stop within {deadline_s:g} s; killing it")
            _kill_group(running.pid)
            await asyncio.wait({self._task})


def _lead_group_until_parent_ends() -> None:
    """Make this process the leader of a new group, and end it with its parent. Called before `exec`.

    Ctrl-C then reaches `penstock up` alone, which stops the processes in order. It is not a new session,
    because Linux schedules each session as one unit (`sched_autogroup`): beside an engine, whose many threads
    poll, a sidecar in a session of its own waited a second and more for a busy core.
    """
    os.setpgrp()
    stop_with_parent()


async def _wait_for_exit(running: asyncio.subprocess.Process) -> None:
    """Wait for the process only. `Process.wait` also waits for pipes, which its children may hold open."""
    while running.returncode is None:  # noqa: ASYNC110  # asyncio only notifies `wait`
        await asyncio.sleep(POLL_S)


def _kill_group(leader: int) -> None:
    """Kill the process group that a process leads."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _describe_exit(code: int, log_tail: deque[str]) -> str:
    if code == -signal.SIGKILL:  # a killed process logs nothing
        return f"signal 9; {NO_MEMORY}"
    last = reason_line(log_tail) or "no log"
    return f"{_exit_cause(code)}: {last}{f'; {NO_MEMORY}' if _CHILD_KILLED in last else ''}"


def _exit_cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
