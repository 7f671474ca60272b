"""Which instance gets which requests [annealing, §4.4, Algorithm 2].

Orders are annealed for each instance alone, so that the search stays small; requests are spread first. Each
goes to the instance with most memory left, counted in tokens. When even that one has no room for the next,
as much as possible has been spread: all count as empty again and a new round starts.

Memory is turned into tokens by what was seen of it (eq. 20): `tokens = m·μ/σ`, with μ the share of memory
that can really be used before fragmentation ends it, and σ the bytes of one token.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What an instance's memory is worth, by its runs so far.

    runs: how many. utilities: their peak use over what was there, summed. used_bytes, tokens: at their peaks.
    """

    runs: int = 0
    utilities: float = 0.0
    used_bytes: float = 0.0
    tokens: int = 0

    def observe(self, peak_bytes: float, available_bytes: float, tokens: int) -> "MemoryProfile":
        """After a run that held `tokens` tokens in `peak_bytes` at its peak."""
        return MemoryProfile(
            self.runs + 1,
            self.utilities + peak_bytes / available_bytes,
            self.used_bytes + peak_bytes,
            self.tokens + tokens,
        )

    def token_num(self, memory_bytes: float) -> int:
        """Tokens that this much memory will hold (eq. 20). Raises ValueError before anything was seen."""
        if self.tokens == 0:
            raise ValueError("no run was seen, so nothing is known of what a token takes")
        utility, token_bytes = self.utilities / self.runs, self.used_bytes / self.tokens
        return int(memory_bytes * utility / token_bytes)


def assign(request_tokens: Sequence[int], room_tokens: Sequence[int]) -> list[int]:
    """The instance of each request, in their order: an index into `room_tokens`, what each has left now.

    request_tokens: what each will hold at its longest. Ties go to the first instance. One that fits nowhere,
    not even in a new round, goes where there is most all the same. Raises ValueError where there is none.
    """
    if not room_tokens:
        raise ValueError("no instance to assign requests to")
    left = list(room_tokens)
    assigned = []
    for tokens in request_tokens:
        most = _most(left)
        if left[most] < tokens:
            left = list(room_tokens)
            most = _most(left)
        left[most] -= tokens
        assigned.append(most)
    return assigned


def _most(left: Sequence[int]) -> int:
    return max(range(len(left)), key=left.__getitem__)
