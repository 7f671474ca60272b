"""Ctrl-C: the pool stops in order and leaves nothing behind."""

from time import monotonic

from pool_on_vllm.world import World


def pool_stops(world: World) -> str:
    """Ctrl-C ends `penstock up`"""
    began_s = monotonic()
    code, left = world.up.stop()
    assert code == 0, f"exit code {code}:\n{world.up.said()[-2000:]}"
    assert not left, f"processes {left} are left"
    return f"exit code 0 after {monotonic() - began_s:.0f} s, no process is left"
