"""Cuts the scenarios' recordings from public traces.

    python bench/make_scenarios.py --data DIR

DIR has the published files under the names below. The same files give the same bytes. Sources of the
recordings: `simulator/src/penstock_simulator/scenarios/recordings/README.md`.
"""

import argparse
import ast
import csv
import gzip
import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

OUT = Path(__file__).parents[1] / "simulator/src/penstock_simulator/scenarios/recordings"
SERVEGEN_FOLDER = "data/reason/deepseek-r1"
SERVEGEN_START_S, SERVEGEN_SECONDS = 50400, 600
CONTEXT_TOKENS = 131_072
SERVEGEN_DATASET = "43200"  # lengths of the six hours that contain the window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the published traces")
    data: Path = parser.parse_args().data
    lengths = ("prompt_tokens", "output_tokens")
    write("azure-conv", ("arrival_s", *lengths), azure(data / "azure-2023-conv.csv.gz", 900, 300))
    write("azure-code", ("arrival_s", *lengths), azure(data / "azure-2023-code.csv.gz", 1786, 300))
    write("arxiv-lengths", lengths, arxiv(data / "arxiv-summarization-lengths.csv.gz"))
    write("mooncake", ("arrival_s", *lengths), mooncake(data / "mooncake-synthetic.jsonl.gz"))
    reasoning = servegen(data / "servegen-reasoning-deepseek-r1.tar.gz")
    write("servegen-reasoning", ("arrival_s", *lengths, "thinking_tokens"), reasoning)
    turns = ("session", "think_s", *lengths, "blocks")
    write("agents", turns, coding_agents(data / "claude-code-sessions.csv.gz"))
    write("swe", turns, logged_agents(data / "agents-mini-swe-blk16.jsonl.gz"))
    write("web", turns, logged_agents(data / "agents-magentic-blk16.jsonl.gz"))
    write("rag-chat", turns, single_turns(data / "mooncake-synthetic.jsonl.gz"))


def azure(path: Path, start_s: float, seconds: float) -> Iterator[Sequence[object]]:
    """Yield a window of the trace, with times from its first request."""
    with gzip.open(path, "rt") as file:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), row["ContextTokens"], row["GeneratedTokens"])
            for row in csv.DictReader(file)
        ]
    first = min(moment for moment, _, _ in rows)
    for moment, prompt, output in rows:
        at_s = (moment - first).total_seconds() - start_s
        if 0 <= at_s < seconds:
            yield f"{at_s:.3f}", prompt, output


def arxiv(path: Path) -> Iterator[Sequence[object]]:
    """Yield all pairs of lengths, sorted by length, because their order is not recorded."""
    with gzip.open(path, "rt") as file:
        rows = csv.DictReader(file)
        yield from sorted((int(row["num_prefill_tokens"]), int(row["num_decode_tokens"])) for row in rows)


def mooncake(path: Path) -> Iterator[Sequence[object]]:
    """Yield the whole trace, without hash ids."""
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            yield f"{row['timestamp'] / 1000:.3f}", row["input_length"], row["output_length"]


def coding_agents(path: Path) -> Iterator[Sequence[object]]:
    """Yield sessions within the context and without sub-agents. Ids, unique per session, are made unique."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["output_tokens"] != "0"]
    left_out = {row["session"] for row in rows if row["agent"] or int(row["input_tokens"]) > CONTEXT_TOKENS}
    ids: dict[tuple[str, int], int] = {}
    for row in rows:
        if (session := row["session"]) not in left_out:
            blocks = [ids.setdefault((session, block), len(ids)) for block in expanded(row["blocks"])]
            yield session, row["think_s"] or 0, row["input_tokens"], row["output_tokens"], ranges(blocks)


def expanded(text: str) -> Iterator[int]:
    """Yield the numbers of ranges like `1-5 9`."""
    for run in text.split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def logged_agents(path: Path) -> Iterator[Sequence[object]]:
    """Yield whole sessions. A pause is the gap to the previous request less the time of its answer.

    Answer times are not logged. They are estimated from the 1st percentile of gap over answer tokens.
    """
    sessions: dict[str, list[dict[str, Any]]] = {}
    for row in json_lines(path):
        sessions.setdefault(row["session_id"], []).append(row)
    paces_s = [gap_s / tokens for rows in sessions.values() for gap_s, tokens in gaps(rows)]
    token_s = float(np.percentile(paces_s, 1))
    for number, rows in enumerate(sessions.values()):
        thought = [max(gap_s - tokens * token_s, 0.0) for gap_s, tokens in gaps(rows)]
        for think_s, row in zip([0.0, *thought], rows, strict=True):
            yield number, f"{think_s:.3f}", row["input_length"], row["output_length"], ranges(row["hash_ids"])


def gaps(rows: Sequence[dict[str, Any]]) -> list[tuple[float, int]]:
    """Return the seconds from each request to the next, with the tokens of its answer."""
    return [
        ((after["timestamp"] - before["timestamp"]) / 1000, before["output_length"])
        for before, after in pairwise(rows)
    ]


def single_turns(path: Path) -> Iterator[Sequence[object]]:
    """Yield requests without a known session, each as its own session."""
    for number, row in enumerate(json_lines(path)):
        yield number, 0, row["input_length"], row["output_length"], ranges(row["hash_ids"])


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        yield from (json.loads(line) for line in file)


def ranges(ids: Sequence[int]) -> str:
    """Return ids in order, consecutive ones as ranges: `1-5 9`."""
    runs: list[list[int]] = []
    for one in ids:
        if runs and one == runs[-1][-1] + 1:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    return " ".join("-".join(map(str, run)) for run in runs)


def servegen(path: Path) -> list[Sequence[object]]:
    """Return ten minutes of all active clients, drawn from each client's distributions."""
    drawn: list[tuple[float, int, int, int]] = []
    with tarfile.open(path) as tar:
        for client in range(sum(name.endswith("trace.csv") for name in tar.getnames())):
            trace = member(tar, f"{SERVEGEN_FOLDER}/chunk-{client}-trace.csv").read().decode()
            lengths = json.load(member(tar, f"{SERVEGEN_FOLDER}/chunk-{client}-dataset.json"))
            drawn += list(client_requests(client, trace, lengths[SERVEGEN_DATASET]))
    return [(f"{at_s:.3f}", *tokens) for at_s, *tokens in sorted(drawn)]


def member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    if file is None:
        raise SystemExit(f"{name}: no file in the archive")
    return file


def client_requests(
    client: int, trace: str, lengths: dict[str, str]
) -> Iterator[tuple[float, int, int, int]]:
    """Yield one client's requests: gaps from its fitted distribution, lengths from its counts."""
    windows = (line.split(",") for line in trace.splitlines() if line)
    law, shape, scale = next(row[3:6] for row in windows if int(row[0]) == SERVEGEN_START_S)
    if not law:
        return
    random = np.random.default_rng([2026, client])
    counts = {name: ast.literal_eval(text) for name, text in lengths.items()}
    at_s = gap_s(random, law, float(shape), float(scale)) * random.random()
    while at_s < SERVEGEN_SECONDS:
        prompt, output, ratio = (
            draw(random, counts[name]) for name in ("input_tokens", "output_tokens", "reason_ratio")
        )
        output_tokens = max(round(output), 1)
        yield at_s, max(round(prompt), 1), output_tokens, min(round(output_tokens * ratio), output_tokens)
        at_s += gap_s(random, law, float(shape), float(scale))


def gap_s(random: np.random.Generator, law: str, shape: float, scale: float) -> float:
    gap: float = random.gamma(shape, scale) if law == "Gamma" else scale * random.weibull(shape)
    return gap


def draw(random: np.random.Generator, shares: dict[float, float]) -> float:
    """Draw a value of a histogram."""
    values: np.ndarray[Any, np.dtype[np.float64]] = np.array(list(shares), dtype=float)
    weights = np.array(list(shares.values()), dtype=float)
    return float(random.choice(values, p=weights / weights.sum()))


def write(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    path = OUT / f"{name}.csv.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    print(f"{path.name}: {len(lines) - 1} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
