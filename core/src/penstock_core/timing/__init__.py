"""Timing of an engine: the time model, its fit and online correction, and speculative decoding."""
