"""The manifests of a pool's objects, one file per kind."""
