"""The end-to-end story on real vLLM: what a pool promises, shown in the engine that keeps it."""
