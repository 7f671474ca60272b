"""SLO-aware annealing: the order and batches of a queue, searched by simulated annealing."""
