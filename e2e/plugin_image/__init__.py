"""The plug-in's image beside a vLLM that has nothing of ours."""
