"""How many replicas a pool should have, decided from what admission refused and what it learned."""
