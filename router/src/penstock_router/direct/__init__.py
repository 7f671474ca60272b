"""Answers that the router reads at engines itself, with the tickets of their sidecars."""
