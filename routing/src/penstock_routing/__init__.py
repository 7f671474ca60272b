"""What router and picker share: keys, tiers, limits, replicas, and the order in which replicas are tried."""
