"""`python -m penstock_pool.crd` prints the definition as YAML, for crds/servingpools.yaml."""

from penstock_pool.crd.page import page

print(page(), end="")
