"""How many replicas a pool runs: demand from its routers, core's decision, kept over restarts."""
