"""The replicas that a router knows: a link and a session each, their health and load."""
