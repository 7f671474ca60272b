"""AccelGen: batches that fill two resources, tokens and KV blocks, in order of remaining time."""
