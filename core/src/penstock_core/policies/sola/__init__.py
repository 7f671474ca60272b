"""SOLA: each iteration minimises TTFT or TPOT, whichever is nearer to its target."""
