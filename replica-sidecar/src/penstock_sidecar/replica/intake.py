"""Reads submitted requests, and converts them to jobs for admission."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock_core.domain.verdict import Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.replica.admission import AdmissionController
from penstock_sidecar.replica.serving import ServiceState, Serving
from penstock_sidecar.requests.client_body import ClientBody, check_context, read_body
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.job import check_times, job_of
from penstock_sidecar.requests.replica_request import ReplicaRequest


class SubmitIntake:
    """Reads requests and queues them for admission. A thread parses long bodies, one after another."""

    def __init__(
        self,
        serving: Serving,
        state: ServiceState,
        estimates: Estimates,
        admission: AdmissionController,
        prefixes: PrefixIndex,
        *,
        faults: Faults,
        bounds: Bounds,
    ) -> None:
        self._serving, self._state, self._estimates = serving, state, estimates
        self._admission, self._faults, self._bounds = admission, faults, bounds
        self._prefixes = prefixes
        self._reader = ThreadPoolExecutor(1, "bodies")
        self._reading: set[asyncio.Task[None]] = set()

    def take(self, request: ReplicaRequest, submit: wire.Submit) -> None:
        """Accept a submitted request. If it cannot be served, it has ended on return."""
        with self._faults.of(request, "submit"):
            if self._admission.waiting + len(self._reading) >= self._bounds.requests:
                self._admission.give_verdict(request, Rejected(Reason.QUEUE_FULL))
            elif len(submit.body) > self._bounds.inline_body_bytes:
                task = asyncio.create_task(self._take_long(request, submit))
                self._reading.add(task)
                task.add_done_callback(self._reading.discard)
            else:
                self._take(request, submit)

    async def close(self) -> None:
        """Stop reading bodies."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        if self._reading:
            await asyncio.wait(self._reading)

    def _take(self, request: ReplicaRequest, submit: wire.Submit) -> None:
        try:
            self._queue(request, submit, self._read(submit)())
        except ApiError as error:
            request.invalid(error)

    async def _take_long(self, request: ReplicaRequest, submit: wire.Submit) -> None:
        """Accept a request whose body the thread parses. The request may end meanwhile."""
        read = self._read(submit)
        with self._faults.of(request, "submit"):
            try:
                body = await asyncio.get_running_loop().run_in_executor(self._reader, read)
                if not request.ended:
                    self._queue(request, submit, body)
            except ApiError as error:
                if not request.ended:
                    request.invalid(error)

    def _read(self, submit: wire.Submit) -> Callable[[], ClientBody]:
        most = self._serving.max_sequences
        return partial(read_body, submit.endpoint, submit.body, most, marked=self._prefixes.wanted)

    def _queue(self, request: ReplicaRequest, submit: wire.Submit, body: ClientBody) -> None:
        """Queue a request whose body is parsed. Raises ApiError if it cannot be planned."""
        tier = self._serving.tiers.get(submit.tier)
        if tier is None:
            raise ApiError(
                400, f"this replica has no tier '{submit.tier}'", param="tier", code="unknown_tier"
            )
        check_times(submit)
        check_context(body, self._state.max_model_len)
        job = job_of(
            submit,
            body,
            tier,
            self._estimates,
            self._prefixes.longest(body.marks),
            key=request.key,
            context_tokens=self._state.max_model_len,
            now_s=request.arrived_s,
        )
        request.planned(body, job, self._estimates.learned_delivery_s)
        self._admission.add(request)
