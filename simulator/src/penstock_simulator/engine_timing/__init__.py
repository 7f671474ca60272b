"""Durations of iterations on the simulated GPU: measured kernel tables, noise and drift."""
