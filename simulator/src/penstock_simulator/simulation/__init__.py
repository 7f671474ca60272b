"""A whole fleet in virtual time: `simulate(fleet, arrivals, seed)` gives what became of every request."""

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.fleet import Fleet, Lengths
from penstock_simulator.simulation.outcome import Outcome, Verdict
from penstock_simulator.simulation.run import simulate
from penstock_simulator.simulation.steering import Steering

__all__ = ["Arrival", "Fleet", "Lengths", "Outcome", "Steering", "Verdict", "simulate"]
