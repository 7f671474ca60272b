"""Building one batch: the batch under construction, orders of service, preemption, best effort."""
