"""What every front of a pool shares: keys, tiers, limits, replicas, and the order in which they are asked."""
