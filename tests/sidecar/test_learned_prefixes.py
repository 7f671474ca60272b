"""The prefix cache learned from an engine's answers, compared with the cache itself."""

import json
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest
from penstock_proto.sse import EngineUsage
from penstock_runtime.prompt_marks import Mark, PromptMarks, prompt_marks
from penstock_sidecar.mirror.learned_prefixes import MOST_UNINFORMATIVE, LearnedPrefixes
from penstock_sidecar.mirror.prefix_index import MOST_PROMPTS, PrefixIndex
from penstock_sidecar.mirror.prompt_uses import PromptUses
from penstock_simulator.prefix_cache.block_keys import token_keys
from penstock_simulator.prefix_cache.prefix_cache import PrefixCache, RequestBlocks

BLOCK = 16
UNREPEATED = [50_000] * 30
"""Tokens of an answer that the next turn has no copy of, such as reasoning."""


@dataclass
class Session:
    """A chat. texts: of its messages; tokens: as the engine has them."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def turn(self, chance: Random, answer: list[int] | None = None) -> None:
        """Add an answer and the next message. answer: its tokens; random ones without."""
        for tokens in (answer, None) if self.texts else (None,):
            new = tokens or [chance.randrange(50_000) for _ in range(chance.randint(20, 400))]
            self.tokens = self.tokens + new
            self.texts = [*self.texts, " ".join("word"[: chance.randint(1, 4)] for _ in new)]

    @property
    def marks(self) -> PromptMarks:
        messages = [{"role": "user", "content": text} for text in self.texts]
        return prompt_marks(json.dumps({"messages": messages}).encode())


class Engine:
    """An engine's prefix cache."""

    def __init__(self, blocks: int) -> None:
        self.cache = PrefixCache(blocks, BLOCK)

    def serves(self, name: str, tokens: list[int], answer: list[int]) -> int:
        """Returns the cached tokens of a prompt, and computes the rest and its answer."""
        request = RequestBlocks(name, token_keys(tokens + answer, BLOCK))
        found = self.cache.start(request, len(tokens))
        total = len(tokens) + len(answer)
        self.cache.grow(request, total, total)
        self.cache.release(request)
        return found


class Outcome(NamedTuple):
    """Of one prompt: its tokens, those that were planned as cached, and those that were."""

    tokens: int
    planned: int
    found: int


class Desk:
    """An index that learns from an engine with so many blocks. knows_size: whether their number is known."""

    def __init__(self, blocks: int, knows_size: bool = True) -> None:
        self.index, self.engine, self.number = PrefixIndex(), Engine(blocks), 0
        self.estimates = LearnedPrefixes(self.index, lambda: blocks * BLOCK * knows_size)

    def planned(self, session: Session) -> int:
        return min(self.estimates.cached_tokens(session.marks), len(session.tokens) - 1) // BLOCK * BLOCK

    def send(self, session: Session) -> tuple[str, int, Session]:
        self.number += 1
        name, copy = str(self.number), Session(session.texts, session.tokens)
        planned = self.planned(copy)
        self.estimates.sent(name, copy.marks)
        self.index.add(name, copy.marks)
        return name, planned, copy

    def answer(self, name: str, planned: int, session: Session, answer: list[int] = UNREPEATED) -> Outcome:
        found = self.engine.serves(name, session.tokens, answer)
        self.estimates.answered(name, EngineUsage(len(session.tokens), len(answer), found))
        self.estimates.ended(name)
        return Outcome(len(session.tokens), planned, found)

    def ask(self, session: Session, answer: list[int] = UNREPEATED) -> Outcome:
        return self.answer(*self.send(session), answer)


def traffic(desk: Desk, sessions: int, requests: int, under_way: int, seed: int) -> list[Outcome]:
    """Sessions that take turns at random, end, and are followed by others."""
    chance, outcomes = Random(seed), []
    there = [Session() for _ in range(sessions)]
    last: dict[int, str] = {}  # each session's last turn; the next one comes after its answer
    sent: deque[tuple[str, int, Session]] = deque()
    for _ in range(requests):
        busy = {name for name, _, _ in sent}
        at = chance.choice([each for each in range(sessions) if last.get(each) not in busy])
        if len(there[at].tokens) > 6000:
            there[at] = Session()
        there[at].turn(chance)
        sent.append(desk.send(there[at]))
        last[at] = sent[-1][0]
        if len(sent) > under_way:
            outcomes.append(desk.answer(*sent.popleft()))
    return outcomes + [desk.answer(*each) for each in sent]


def share(outcomes: list[Outcome]) -> float:
    """Mean of the planned cached tokens' error, of the prompts."""
    return sum(abs(one.planned - one.found) / one.tokens for one in outcomes) / len(outcomes)


def over(outcomes: list[Outcome]) -> float:
    """Mean of the tokens that were planned as cached and were not, of the prompts."""
    return sum(max(one.planned - one.found, 0) / one.tokens for one in outcomes) / len(outcomes)


@pytest.mark.parametrize("knows_size", [True, False])
@pytest.mark.parametrize(
    ("blocks", "sessions", "under_way"),
    [(20_000, 20, 0), (20_000, 20, 8), (4_000, 8, 2)],
    ids=["ample", "ample, 8 at once", "just enough"],
)
def test_the_mean_error_is_within_a_twentieth_of_the_prompt(
    blocks: int, sessions: int, under_way: int, knows_size: bool
) -> None:
    outcomes = traffic(Desk(blocks, knows_size), sessions, 800, under_way, seed=1)
    assert sum(one.found for one in outcomes) > 0.5 * sum(one.tokens for one in outcomes)
    assert share(outcomes[100:]) <= 0.05


@pytest.mark.parametrize("knows_size", [True, False])
@pytest.mark.parametrize(
    ("blocks", "sessions", "under_way"),
    [(600, 12, 2), (1200, 12, 2), (2400, 12, 2), (2400, 12, 8), (4000, 30, 4)],
)
def test_the_mean_error_is_within_a_fiftieth_if_most_prefixes_are_evicted(
    blocks: int, sessions: int, under_way: int, knows_size: bool
) -> None:
    outcomes = traffic(Desk(blocks, knows_size), sessions, 1500, under_way, seed=2)[100:]
    evicted = [one for one in outcomes if one.found < one.tokens / 2 and one.tokens > 1000]
    assert len(evicted) > len(outcomes) / 10
    assert share(outcomes) <= 0.02
    assert over(outcomes) <= 0.005


def chats(desk: Desk, share_repeated: float) -> list[Outcome]:
    """Chats of long answers. share_repeated: of answers, those that the next turn has the same tokens of."""
    chance, outcomes = Random(5), []
    there, answers = [Session() for _ in range(12)], [list[int]() for _ in range(12)]
    for _ in range(1200):
        at = chance.randrange(12)
        if len(there[at].tokens) > 6000:
            there[at] = Session()
        there[at].turn(chance, answers[at] if chance.random() < share_repeated else None)
        answers[at] = [chance.randrange(50_000) for _ in range(chance.randint(50, 800))]
        outcomes.append(desk.ask(there[at], answers[at]))
    return outcomes[200:]


@pytest.mark.parametrize("blocks", [1200, 2400, 20_000])
@pytest.mark.parametrize("share_repeated", [0.0, 1.0])
def test_answers_that_the_next_turn_repeats_are_counted_where_the_engine_finds_them(
    share_repeated: float, blocks: int
) -> None:
    outcomes = chats(Desk(blocks), share_repeated)
    assert share(outcomes) <= 0.02
    assert over(outcomes) <= 0.005


def test_few_answers_are_counted_where_only_some_are_repeated() -> None:
    outcomes = chats(Desk(20_000), 0.5)
    assert over(outcomes) <= 0.01


def test_a_prefix_that_sessions_share_stays_counted_when_a_session_is_evicted() -> None:
    desk, chance, common = Desk(600), Random(6), Session()
    common.turn(chance)
    for _ in range(60):
        session = Session(common.texts, common.tokens)
        for _ in range(3):
            session.turn(chance)
            outcome = desk.ask(session)
    session = Session(common.texts, common.tokens)
    session.turn(chance)
    outcome = desk.ask(session)
    assert outcome.found >= len(common.tokens) - BLOCK
    assert 0 < outcome.planned <= outcome.found
    assert outcome.found - outcome.planned <= 2 * BLOCK


def test_a_cache_that_keeps_less_than_before_is_learned() -> None:
    desk = Desk(2400)
    traffic(desk, 12, 400, 2, seed=2)
    desk.engine = Engine(1200)  # something past this sidecar takes half of it
    traffic(desk, 12, 400, 2, seed=3)
    assert 0.5 * 1200 * BLOCK <= desk.estimates.keeps_tokens <= 1.1 * 1200 * BLOCK


def test_no_token_counts_as_cached_until_an_answer_has_shown_a_cache() -> None:
    desk, chance, session = Desk(5000), Random(1), Session()
    for expected in (False, False, True):
        session.turn(chance)
        assert (desk.ask(session).planned > 0) is expected


def test_an_engine_that_never_reports_cached_tokens_is_not_asked_again() -> None:
    index = PrefixIndex()
    index.wanted = True
    estimates = LearnedPrefixes(index, lambda: 1000)
    for number in range(MOST_UNINFORMATIVE):
        assert index.wanted
        estimates.answered(str(number), EngineUsage(100, 10))
    assert not index.wanted
    assert not index.used


def test_a_reset_cache_is_noticed_with_its_first_prompt() -> None:
    desk = Desk(20_000)
    traffic(desk, 20, 400, 0, seed=3)
    one, other, chance = Session(), Session(), Random(4)
    for session in (one, other, one, other):
        session.turn(chance)
        desk.ask(session)
    desk.engine = Engine(20_000)
    kept = desk.estimates.keeps_tokens
    one.turn(chance)
    assert desk.ask(one).planned > 0
    other.turn(chance)
    assert desk.ask(other).planned == 0
    assert desk.estimates.keeps_tokens == kept
    one.turn(chance)
    assert desk.ask(one).planned > 0


def test_a_lost_engine_has_no_prefixes() -> None:
    desk, chance, session = Desk(5000), Random(1), Session()
    for _ in range(3):
        session.turn(chance)
        desk.ask(session)
    desk.estimates.lose()
    session.turn(chance)
    assert desk.ask(session).planned == 0


def test_an_answer_in_progress_when_the_engine_was_lost_is_not_learned_from() -> None:
    desk, chance, session = Desk(5000), Random(1), Session()
    for _ in range(3):
        session.turn(chance)
        desk.ask(session)
    session.turn(chance)
    sent, kept = desk.send(session), desk.estimates.keeps_tokens
    desk.estimates.lose()
    desk.engine = Engine(5000)
    desk.answer(*sent)
    assert desk.estimates.keeps_tokens == kept


@pytest.mark.parametrize("ids", [[5], [1] * 512 + [7], [*range(300), 7]])
def test_prompts_of_token_ids_that_differ_in_the_last_are_learned(ids: list[int]) -> None:
    index = PrefixIndex()
    estimates = LearnedPrefixes(index, lambda: 80_000)
    for name, prompt in (("a", ids), ("b", [*ids[:-1], 8]), ("c", ids)):
        marks = prompt_marks(json.dumps({"prompt": prompt}, separators=(",", ":")).encode())
        assert estimates.cached_tokens(marks) <= len(ids)
        estimates.sent(name, marks)
        index.add(name, marks)
        estimates.answered(name, EngineUsage(len(ids), 4, len(ids) // BLOCK * BLOCK if name != "a" else 0))
        estimates.ended(name)


def test_a_prompt_whose_last_pieces_have_no_id_is_learned() -> None:
    uses, marks = PromptUses(), PromptMarks((Mark(1, 3), Mark(2, 3)), token_ids=True)
    for name in ("a", "b"):
        uses.sent(name, marks, uses.known(marks).own_tokens[:1], 0)
        uses.answered(name, marks, 3, 1)
    assert uses.total == 3 + 2  # the prompt once, and both answers


def test_prompts_that_repeat_are_forgotten_with_the_index() -> None:
    desk, chance, session = Desk(5000), Random(1), Session()
    session.turn(chance)
    for _ in range(2 * MOST_PROMPTS):
        desk.ask(session)
    assert len(desk.estimates._counted) <= len(desk.index) == MOST_PROMPTS


def test_routers_receive_evictions() -> None:
    desk, chance, session = Desk(600), Random(1), Session()
    for _ in range(3):
        session.turn(chance)
        desk.ask(session)
    key = session.marks.marks[-1].key
    assert key in {change.key for change in desk.index.reported.all()}
    traffic(desk, 12, 40, 0, seed=2)
    assert key not in {change.key for change in desk.index.reported.all()}
