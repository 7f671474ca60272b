"""Cuts the excerpt in `examples/` from Azure's public traces, and prints its contents.

    python bench/traces/cut_azure.py --conv AzureLLMInferenceTrace_conv.csv \
        --code AzureLLMInferenceTrace_code.csv --start 1390 --seconds 60 --out examples/azure-excerpt.csv.gz

The two traces were recorded over the same hour. Their clocks are kept: request times count from the earlier
trace's first arrival, and the window is cut from both at once. Requests keep their order and lengths; those
over `--max-tokens` (prompt and answer together) are left out, because no replica of the demo could hold them.
"""

import argparse
import gzip
import io
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from penstock_cli.traces import azure_csv
from penstock_cli.traces.csv_rows import read_rows
from penstock_cli.traces.lines import read_lines
from penstock_cli.traces.request import TraceRequest


def read(path: Path, tier: str) -> list[TraceRequest]:
    """Return the trace's requests with this tier; arrivals are Unix times."""
    lines = read_lines(path)
    header = next(lines).split(",")
    return [request._replace(tier=tier) for _, request in azure_csv.parse(read_rows(path, lines, header, 1))]


def cut(requests: list[TraceRequest], start_s: float, seconds: float, max_tokens: int) -> list[TraceRequest]:
    """Return the requests that arrive in the window, with times from its start."""
    return [
        request._replace(arrival_s=request.arrival_s - start_s)
        for request in sorted(requests, key=lambda request: request.arrival_s)
        if start_s <= request.arrival_s < start_s + seconds
        and request.prompt_tokens + request.output_tokens <= max_tokens
    ]


def write(path: Path, requests: list[TraceRequest]) -> None:
    """Write Penstock's CSV. Equal requests give equal bytes, because gzip's timestamp is 0."""
    text = io.StringIO()
    print("arrival_s,prompt_tokens,output_tokens,tier", file=text)
    for request in requests:
        print(
            f"{request.arrival_s:.3f},{request.prompt_tokens},{request.output_tokens},{request.tier}",
            file=text,
        )
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--conv", type=Path, required=True, help="Azure's chat trace")
    parser.add_argument("--code", type=Path, required=True, help="Azure's code trace")
    parser.add_argument("--start", type=float, required=True, help="seconds after the first arrival of both")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()

    requests = read(flags.conv, "chat") + read(flags.code, "coder")
    first_s = min(request.arrival_s for request in requests)
    window = cut(requests, first_s + flags.start, flags.seconds, flags.max_tokens)
    write(flags.out, window)
    print(f"window starts {datetime.fromtimestamp(first_s + flags.start, UTC):%Y-%m-%d %H:%M:%S} UTC")
    for tier in ("chat", "coder"):
        mine = [request for request in window if request.tier == tier]
        busiest = Counter(int(request.arrival_s) for request in mine).most_common(1)[0]
        prompts, outputs = mean(r.prompt_tokens for r in mine), mean(r.output_tokens for r in mine)
        print(
            f"{tier}: {len(mine)} requests, prompt {prompts:.0f}, answer {outputs:.0f} tokens in the mean, "
            f"at most {busiest[1]} in one second"
        )


if __name__ == "__main__":
    main()
