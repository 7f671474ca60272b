"""The vocabulary of every decision: requests, SLOs, verdicts, the replica view and the policy interface."""
