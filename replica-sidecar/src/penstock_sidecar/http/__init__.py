"""OpenAI's HTTP API for gateways that choose replicas themselves: one more front over the same admission."""
