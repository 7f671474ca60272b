"""Measures an engine over HTTP, and fits its time model.

`plan` lists the probes, `engine` and `decoding` send them, `measure` computes a point from each, and
`profiling` runs the plan within a time limit and fits a model to the points (`penstock_core.timing.fit`).
"""

from penstock_profiler.engine import EngineError, EngineKvCache, MeasuredEngine, connected
from penstock_profiler.plan import DecodeProbe, PrefillProbe, Probe, ProfileLimits, plan
from penstock_profiler.profiling import NoTimeModel, ProbeSummary, Profile, profile

__all__ = [
    "DecodeProbe",
    "EngineError",
    "EngineKvCache",
    "MeasuredEngine",
    "NoTimeModel",
    "PrefillProbe",
    "Probe",
    "ProbeSummary",
    "Profile",
    "ProfileLimits",
    "connected",
    "plan",
    "profile",
]
