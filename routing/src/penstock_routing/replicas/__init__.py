"""The pool's replicas as a router knows them: a link and a session each, their health and load."""
