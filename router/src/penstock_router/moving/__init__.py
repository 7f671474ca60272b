"""Streams that are continued on another replica when theirs is lost."""
