"""A trace on a simulated fleet: from a pool file to the same report as a replay's."""
