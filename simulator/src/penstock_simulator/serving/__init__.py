"""The engine in real time: step loop, step planning, token streams, step reports and metrics."""
