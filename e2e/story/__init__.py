"""The end-to-end story: from nothing to a verdict, on a real cluster, under traffic."""
