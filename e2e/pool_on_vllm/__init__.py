"""End-to-end test: a pool on real vLLM, whose SLOs are checked in the engine."""
