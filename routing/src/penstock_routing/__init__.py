"""Code that router and picker share: keys, tiers, limits, replicas, and the inputs of routing orders."""
