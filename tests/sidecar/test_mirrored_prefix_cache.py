"""A simulated engine with a prefix cache, and the mirror that follows its reports."""

import json
from collections.abc import Sequence
from random import Random

import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.forecast.kv_forecast import forecast_jobs
from penstock_core.policies import build
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.prompt_marks import PromptMarks, prompt_marks
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration
from penstock_simulator.prefix_cache.block_keys import BlockKey, token_keys
from penstock_simulator.serving.step_reports import StepReportSender

MODEL, SIZE, BLOCKS = TimeModel("any", (Term(1e-5, 0.01),)), 16, 120
LIMITS = Limits(batch_tokens=256, running=4)
POLICY = build("vllm")


class Line:
    """The socket between the two, which loses reports, or a part of them, where a test says so."""

    def __init__(self) -> None:
        self.lost, self.came, self.breaks, self.older = 0, list[StepReport](), False, False

    def send(self, report: StepReport) -> bool:
        if not self.breaks:
            self.came.append(StepReport.FromString(report.SerializeToString()))
            if self.older:
                self.came[-1].ClearField("sharing")
                self.came[-1].ClearField("common_blocks")
        return True


class Pair:
    """The engine and its mirror, in virtual time."""

    def __init__(self, *, caches: bool = True) -> None:
        self.engine = EngineState(BLOCKS * SIZE, LIMITS, SIZE, prefix_caching=caches)
        self.mirror = ReplicaMirror(KvCache(BLOCKS, BLOCKS, SIZE), LIMITS, lambda job: job.output_tokens + 5)
        self.line = Line()
        self.sender = StepReportSender(self.line)
        self.now_s, self.memory, self.ended = 0.0, POLICY.start(), list[str]()
        self._sequence = 0
        self.report(Iteration())

    def report(self, started: Iteration) -> None:
        """Let the engine report, and the mirror read."""
        self.sender.send(self.engine, None, started, 0.01)
        for report in self.line.came:
            self.mirror.prefixes.take(report, max(report.sequence - self._sequence - 1, 0))
            self._sequence = report.sequence
            self.mirror.apply(report, self.now_s)
        self.line.came.clear()

    def seen(self, name: str, ids: list[int]) -> Job:
        """The candidate as the sidecar plans it."""
        targets = Targets(ttft_s=1.0, tpot_s=0.1)
        return self.mirror.candidate(
            new_job(Request(name, "chat", self.now_s, len(ids), 50, targets), 20, False), marks(ids)
        )

    def holds(self, candidate: Job, keys: Sequence[BlockKey]) -> bool:
        """Whether the request that a candidate counts on holds the blocks that the candidate would find."""
        if candidate.prefix_of is None:
            return True
        cached, held = self.engine.cached, candidate.computed_tokens // SIZE - (candidate.unheld_blocks or 0)
        holder = self.engine._running[candidate.prefix_of].kv
        assert cached is not None
        assert holder is not None
        return holder.blocks[:held] == cached.cache.pool.find(keys)[:held]

    def submit(self, name: str, ids: list[int], answer_tokens: int = 5) -> None:
        """Accept a request and pass it on."""
        job = self.seen(name, ids)
        self.mirror.prefixes.add(name, marks(ids))
        self.mirror.accept(job, self.now_s, prompt_known=True)
        self.engine.add(
            job._replace(computed_tokens=0, unheld_blocks=None), answer_tokens, keys=token_keys(ids, SIZE)
        )

    def step(self) -> None:
        """One iteration, reported as it begins; then the mirror has the waiting jobs of the engine."""
        view = self.engine.view(self.now_s, self.now_s, MODEL)
        step, self.memory = POLICY.step(view, self.memory)
        iteration = self.engine.start(step)
        self.report(iteration)
        if not self.line.breaks:
            mirrored = self.mirror.view(self.now_s, MODEL)
            assert self.waiting_jobs(mirrored.waiting) == self.waiting_jobs(self.engine.waiting)
            assert mirrored.kv.shared_prefixes == self.engine.shared_prefixes
        self.now_s += 0.01
        for name in self.engine.finish(self.now_s).finished:
            self.mirror.forget(name)
            self.ended.append(name)

    def waiting_jobs(self, jobs: tuple[Job, ...]) -> list[tuple[str, int, int | None]]:
        return [(job.request.id, job.computed_tokens, job.unheld_blocks) for job in jobs]

    def serve(self, name: str, ids: list[int]) -> None:
        """A request alone, to its end and one report beyond it."""
        self.submit(name, ids)
        while name not in self.ended:
            self.step()
        self.step()


def marks(ids: list[int]) -> PromptMarks:
    """Of a prompt of ids of six digits; its beginnings are 128 to 146 tokens apart."""
    return prompt_marks(json.dumps({"prompt": [100000 + token for token in ids]}).encode())


def test_a_candidate_is_planned_with_its_prefix_that_the_engine_has_cached() -> None:
    pair, ids = Pair(), list(range(300))
    pair.serve("a", ids)
    seen = pair.seen("b", [*ids, *range(50)])
    assert (seen.computed_tokens, seen.unheld_blocks) == (256, 16), "what two marks have in common"
    pair.submit("c", ids)
    pair.step()
    held = pair.seen("b", [*ids, *range(50)])
    assert (held.unheld_blocks, held.prefix_of) == (0, "c"), "now c holds them"
    assert pair.seen("b", [7, *ids]).unheld_blocks is None
    assert pair.seen("b", ids).computed_tokens == 288, "at least one token is computed"


@pytest.mark.parametrize("cause", ["reset", "report lost", "silence"])
def test_a_prefix_that_may_be_evicted_is_planned_as_computed(cause: str) -> None:
    pair, ids = Pair(), list(range(300))
    pair.serve("a", ids)
    if cause == "reset":
        assert pair.engine.reset_prefix_cache()
        pair.step()
    elif cause == "report lost":
        pair.serve("other", [9] * 40)
        pair.line.breaks = True
        pair.step()
        pair.line.breaks = False
        pair.mirror.prefixes.take(StepReport(sequence=99, engine_instance=pair.sender._instance), 1)
    else:
        pair.mirror.accept(pair.seen("b", ids), pair.now_s)
        pair.mirror.lose_reports()
        assert pair.mirror.view(pair.now_s, MODEL).waiting[0].unheld_blocks is None
    assert pair.seen("c", ids).unheld_blocks is None


@pytest.mark.parametrize("cause", ["silence", "older engine"])
def test_blocks_are_counted_for_every_request_if_sharing_is_unknown(cause: str) -> None:
    pair, ids = Pair(), list(range(300))
    pair.serve("a", ids)
    for name in ("b", "c"):
        pair.submit(name, ids, 50)
        pair.step()
    pair.step()
    assert pair.mirror.view(pair.now_s, MODEL).kv.shared_blocks == {"b": 18, "c": 18}
    if cause == "silence":
        pair.mirror.lose_reports()
    else:
        pair.line.older = True
        pair.submit("d", [9] * 20, 50)
        pair.report(Iteration())
    view = pair.mirror.view(pair.now_s, MODEL)
    rows = forecast_jobs(view.running, view.kv).blocks
    assert rows[:, 0].tolist() == [20, 20]


def test_prefixes_of_a_lost_report_are_restored_by_an_idle_engines_reports() -> None:
    pair, prompts = Pair(), [[number] * 40 for number in range(40)]
    for number, ids in enumerate(prompts):
        pair.serve(f"r{number}", ids)
    pair.line.breaks = True
    pair.report(Iteration())
    pair.line.breaks = False
    pair.report(Iteration())
    assert all(pair.seen("new", ids).computed_tokens == 32 for ids in prompts)


def test_an_engine_without_a_prefix_cache_has_no_entries() -> None:
    pair, ids = Pair(caches=False), list(range(300))
    pair.serve("a", ids)
    assert not pair.mirror.prefixes.used
    assert pair.seen("b", ids).unheld_blocks is None


def test_candidates_are_never_planned_with_more_than_is_cached() -> None:
    """Random sessions in a small cache, with evictions and lost reports."""
    random, pair = Random(3), Pair()
    sessions = [[number] * 90 for number in range(6)]
    found = there = counted = 0
    for number in range(400):
        ids = random.choice(sessions)
        if random.random() < 0.5:
            ids += [random.randrange(1000) for _ in range(random.randrange(60))]
            if len(ids) > 700:
                ids[:] = ids[:90]
            name = f"r{number}"
            keys, candidate = token_keys(ids, SIZE), pair.seen(name, ids)
            real = pair.engine.cached_tokens(keys, len(ids))
            assert candidate.computed_tokens <= real or pair.line.breaks
            counted += candidate.prefix_of is not None
            assert pair.line.breaks or pair.holds(candidate, keys)
            found, there = found + candidate.computed_tokens, there + real
            pair.submit(name, list(ids), random.randrange(1, 12))
        pair.line.breaks = random.random() < 0.05
        pair.step()
    assert found > 0.5 * there > 0
    assert counted > 20
