"""Kubernetes objects as JSON: references, names and labels, list keys, quantities, timestamps."""
