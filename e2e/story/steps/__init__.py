"""The steps of the story, a file for each idea. Each takes the world, does one thing to it, and looks."""
