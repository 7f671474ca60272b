"""The definition as a YAML file."""

import yaml

from penstock_pool.crd.definition import definition

HEAD = "# Generated from the models in pool/ by `make crds`; a test keeps it fresh.\n"


class _Plain(yaml.SafeDumper):
    """YAML without anchors: equal parts are written out each time."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def page() -> str:
    """Return the whole file."""
    return HEAD + yaml.dump(definition(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)
