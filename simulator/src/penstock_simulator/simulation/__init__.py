"""Discrete-event simulation of a fleet: `simulate(fleet, arrivals, seed)` yields all outcomes."""

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.autoscaling.autoscaler import FleetAutoscaler
from penstock_simulator.simulation.fleet import Fleet, LengthKnowledge
from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome
from penstock_simulator.simulation.run import simulate

__all__ = [
    "Arrival",
    "FirstVerdict",
    "Fleet",
    "FleetAutoscaler",
    "LengthKnowledge",
    "SimulatedOutcome",
    "simulate",
]
