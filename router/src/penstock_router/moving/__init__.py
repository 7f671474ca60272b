"""Streams that are continued on another replica when their own is lost."""
