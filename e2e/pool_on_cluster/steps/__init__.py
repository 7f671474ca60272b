"""The steps of the test. Each does one thing to the cluster and checks the result."""
