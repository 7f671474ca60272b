"""Ctrl-C: the pool stops, and all of its processes end."""

from time import monotonic

from pool_on_vllm.context import VllmContext


def stop_pool(context: VllmContext) -> str:
    """Ctrl-C ends `penstock up`"""
    started_s = monotonic()
    code, left = context.pool.stop()
    assert code == 0, f"exit code {code}:\n{context.pool.output()[-2000:]}"
    assert not left, f"processes {left} still run"
    return f"exit code 0 after {monotonic() - started_s:.0f} s, all processes ended"
