"""Placement of a request: attempts in order, hops and failovers, and the wait for a first replica."""
