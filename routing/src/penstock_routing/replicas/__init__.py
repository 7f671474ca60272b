"""The replicas of a pool as a router knows them: their links and sessions, health and load."""
