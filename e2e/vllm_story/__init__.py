"""The end-to-end story on real vLLM: the SLOs of a pool, checked in the engine."""
