"""The operator process: `penstock-operator`."""

import argparse
import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace

import kopf
import uvloop
from penstock_runtime.flags import port
from penstock_runtime.logs import configure_logs

from penstock_operator.options import OperatorOptions, lease_in, namespaces_in, read_options
from penstock_operator.settings import OperatorSettings, SettingsError, read_settings

EPILOG = """
settings (environment; the images are required):
  PENSTOCK_ROUTER_IMAGE, PENSTOCK_PICKER_IMAGE, PENSTOCK_ENVOY_IMAGE, PENSTOCK_SIDECAR_IMAGE,
  PENSTOCK_SIMULATOR_IMAGE, PENSTOCK_VLLM_IMAGE, PENSTOCK_VLLM_PLUGIN_IMAGE   images of pools' pods
  PENSTOCK_IMAGE_PULL_POLICY   Always, IfNotPresent (default) or Never
  PENSTOCK_IMAGE_PULL_SECRETS  names of Secrets in pools' namespaces, separated by commas
  PENSTOCK_TLS                 on (default) or off: mutual TLS between routers and replicas
  PENSTOCK_REDIS_URL_SECRET    Secret in pools' namespaces whose entry `url` is the Redis that routers share
  PENSTOCK_GPU_RUNTIME_CLASS   RuntimeClass of replicas with NVIDIA's GPUs; otherwise the nodes' default
  PENSTOCK_GATEWAY_NAMESPACES  namespaces whose pods reach pools with an InferencePool; otherwise all

The API server is that of the pod, otherwise of $KUBECONFIG, otherwise of ~/.kube/config.

example, outside a cluster:
  KUBECONFIG=~/.kube/config penstock-operator --namespaces team-a,team-b --port 0
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 failure, 2 invalid input."""
    try:
        defaults = read_options(os.environ)
        args = _parser(defaults).parse_args(argv)
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    configure_logs("penstock-operator", args.log_level, args.log_json)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # kopf would log the error that `_run` prints
    logging.getLogger("kopf.activities").setLevel(logging.CRITICAL)
    # coroutines of kopf, if it ends early
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    return _run(settings, _options(defaults, args))


def _run(settings: OperatorSettings, options: OperatorOptions) -> int:
    from penstock_operator import handlers  # noqa: F401  # importing registers the handlers with kopf

    memo = kopf.Memo(settings=settings, options=options)
    operator = kopf.operator(clusterwide=not options.namespaces, namespaces=options.namespaces, memo=memo)
    try:
        uvloop.run(operator)
    except Exception:
        if "start_error" not in memo:
            raise
        print(memo.start_error, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 0
    return 0


def _options(defaults: OperatorOptions, args: argparse.Namespace) -> OperatorOptions:
    return replace(
        defaults,
        namespaces=args.namespaces,
        lease=lease_in(args.lease_namespace) if args.lease_namespace is not None else defaults.lease,
        host=args.host,
        port=args.port,
        workers=args.workers,
        resync_s=args.resync_s,
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return value


def _worker_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of workers: 1 to 64")
    return int(text)


def _parser(defaults: OperatorOptions) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-operator",
        description="Reconciles ServingPools with their Kubernetes objects, reports status, scales replicas.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--namespaces",
        type=namespaces_in,
        default=defaults.namespaces,
        metavar="A,B",
        help="serve only pools in these namespaces, with Roles there; otherwise all, with a ClusterRole"
        " [$PENSTOCK_NAMESPACES]",
    )
    add(
        "--lease-namespace",
        metavar="NAMESPACE",
        help="namespace of the Lease for leader election among several operators;"
        " without it there is no leader election [$PENSTOCK_LEASE_NAMESPACE]",
    )
    add(
        "--host", default=defaults.host, help="address of /metrics, /health and /ready (default: %(default)s)"
    )
    add(
        "--port",
        type=port,
        default=defaults.port,
        help="port of these pages, 0 for any (default: %(default)s) [$PENSTOCK_PORT]",
    )
    add(
        "--workers",
        type=_worker_count,
        default=defaults.workers,
        help="pools reconciled concurrently (default: %(default)s)",
    )
    add(
        "--resync-s",
        type=_positive,
        default=defaults.resync_s,
        help="seconds between full lists of all objects, independent of watches (default: %(default)s)",
    )
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add("--log-json", action="store_true", help="log one JSON object per line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
