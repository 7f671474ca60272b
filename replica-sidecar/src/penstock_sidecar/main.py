"""Entry point of the process `penstock-sidecar`."""

import sys
from collections.abc import Sequence

from penstock_pool import PoolError, load_pool
from penstock_runtime.logs import configure_logs
from penstock_runtime.serving import run_process

from penstock_sidecar.options import parse
from penstock_sidecar.sidecar import run_sidecar


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sidecar. Exit codes: 0 stopped, 1 cannot start, 2 invalid flags or pool file."""
    options = parse(arguments)
    configure_logs("penstock-sidecar", options.log_level, options.log_json)
    try:
        pool = load_pool(options.pool)
    except PoolError as error:
        print(error, file=sys.stderr)
        return 2
    return run_process(lambda stop: run_sidecar(options, pool, stop))


if __name__ == "__main__":
    sys.exit(main())
