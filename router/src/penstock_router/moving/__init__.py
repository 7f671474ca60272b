"""Streams that are continued on another replica after the loss of their replica."""
