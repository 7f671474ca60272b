"""Answers that the router reads from engines directly, with the tickets of their sidecars."""
