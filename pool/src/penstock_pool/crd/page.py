"""The definition as a YAML file."""

import yaml

from penstock_pool.crd.definition import definition

HEAD = "# Generated from the models in pool/ by `make crds`; a test checks that it is current.\n"


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors: equal parts are written out each time."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def page() -> str:
    """Return the whole file."""
    return HEAD + yaml.dump(definition(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)
