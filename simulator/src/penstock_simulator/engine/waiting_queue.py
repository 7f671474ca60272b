"""The requests of an engine that are not running, in order of arrival."""

from bisect import bisect_left, bisect_right

from penstock_core.domain.request import Job, RequestId

from penstock_simulator.engine.iteration import ActiveRequest


class WaitingQueue:
    """Waiting requests. entries: in order. by_id: the same requests by id."""

    def __init__(self) -> None:
        self.entries: list[ActiveRequest] = []
        self.by_id: dict[RequestId, ActiveRequest] = {}
        self._jobs: tuple[Job, ...] | None = None  # invalidated by every change

    def jobs(self) -> tuple[Job, ...]:
        """Return their jobs, in order."""
        if self._jobs is None:
            self._jobs = tuple([entry.job for entry in self.entries])
        return self._jobs

    def add(self, entry: ActiveRequest, *, started: bool = False) -> None:
        """Queue by arrival. Among equal arrival times, requests that had been started go first."""
        find = bisect_left if started else bisect_right
        self.entries.insert(find(self.entries, _arrival_s(entry), key=_arrival_s), entry)
        self.by_id[entry.job.request.id] = entry
        self._jobs = None

    def remove(self, job_id: RequestId) -> ActiveRequest | None:
        """Remove and return a request; None if it does not wait."""
        entry = self.by_id.pop(job_id, None)
        if entry is not None:
            place = bisect_left(self.entries, _arrival_s(entry), key=_arrival_s)
            del self.entries[self.entries.index(entry, place)]
            self._jobs = None
        return entry

    def changed(self) -> None:
        """Invalidate the tuple of jobs, because a waiting request's job has changed."""
        self._jobs = None


def _arrival_s(entry: ActiveRequest) -> float:
    return entry.job.request.arrival_s
