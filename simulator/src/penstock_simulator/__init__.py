"""A simulated engine: OpenAI's API with a GPU's timing, for machines without GPUs."""
