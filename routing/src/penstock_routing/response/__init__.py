"""Answers to clients, for the router and for sidecars that serve HTTP."""
