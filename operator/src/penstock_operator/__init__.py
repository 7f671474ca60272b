"""Turns a ServingPool into running objects: gather what is there, decide what to do, apply it."""
