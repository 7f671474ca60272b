"""The objects of a pool, one file per kind of child: each makes manifests of a pool, decides nothing."""
