"""End-to-end test of the plug-in's image with a vLLM that has no other code of the project."""
