"""What a router reports about requests: metrics, demand for the autoscaler, the access log."""
