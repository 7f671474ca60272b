"""How fast is an engine? Asked of it over HTTP, and answered as a time model.

`plan` says what to ask, `engine` and `decoding` ask, `measure` turns what came back into points, and
`profiling` goes through the plan within a bound of time and fits a model to the points
(`penstock_core.timing.fit`).
"""

from penstock_profiler.engine import Engine, EngineError, KvCache, connected
from penstock_profiler.plan import Decodes, Limits, Prefill, Probe, plan
from penstock_profiler.profiling import Profile, Reading, TooLittle, profile

__all__ = [
    "Decodes",
    "Engine",
    "EngineError",
    "KvCache",
    "Limits",
    "Prefill",
    "Probe",
    "Profile",
    "Reading",
    "TooLittle",
    "connected",
    "plan",
    "profile",
]
