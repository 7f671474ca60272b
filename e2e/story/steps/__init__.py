"""The steps of the story. Each does one thing to the cluster and checks the result."""
