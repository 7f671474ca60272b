"""How long an engine takes: the time model, its fit and online correction, and speculative decoding."""
