"""How long an iteration takes on the simulated GPU: measured kernel tables, noise and drift."""
