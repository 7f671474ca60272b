"""Traces are read from every format they are published in, and a bad line is named."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_cli.traces import TraceError, TraceRequest, read_trace, summarise
from penstock_cli.traces import read as trace_reading

OURS = "arrival_s,prompt_tokens,output_tokens,tier,session\n1.5,100,20,chat,a\n2.0,50,5,coder,b\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.4799600,3180,8\n"
)
AZURE_ZONED = AZURE.replace("600,", "600+00:00,")
MOONCAKE = (
    '{"timestamp": 250, "input_length": 1000, "output_length": 6, "hash_ids": [0, 8]}\n'
    '{"timestamp": 750, "input_length": 3, "output_length": 4, "hash_ids": [0]}\n'
)


def written(tmp_path: Path, text: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_our_format_is_read(tmp_path: Path, zipped: bool) -> None:
    data = gzip.compress(OURS.encode(), mtime=0) if zipped else OURS.encode()
    requests = list(read_trace(written(tmp_path, data)))
    assert requests == [
        TraceRequest(0.0, 100, 20, "chat", session="a"),
        TraceRequest(0.5, 50, 5, "coder", session="b", number=1),
    ]


def test_our_format_has_sessions_and_thinking(tmp_path: Path) -> None:
    head = "arrival_s,prompt_tokens,output_tokens,tier,session,stage,thinking_tokens\n"
    path = written(tmp_path, head + "0,9,8,tool,s1,0,\n0,19,8,tool,s1,1,5\n")
    assert list(read_trace(path)) == [
        TraceRequest(0.0, 9, 8, "tool", session="s1", stage=0, thinking_tokens=0),
        TraceRequest(0.0, 19, 8, "tool", session="s1", stage=1, thinking_tokens=5, number=1),
    ]


@pytest.mark.parametrize("text", [AZURE, AZURE_ZONED, AZURE.replace("\n", "\r\n"), "\ufeff" + AZURE])
def test_azures_format_is_read(tmp_path: Path, text: str) -> None:
    first, second = read_trace(written(tmp_path, text))
    assert first == TraceRequest(0.0, 4808, 10)
    assert second.arrival_s == pytest.approx(0.5, abs=1e-5)
    assert second[1:3] == (3180, 8)


def test_mooncakes_format_is_read(tmp_path: Path) -> None:
    assert list(read_trace(written(tmp_path, MOONCAKE))) == [
        TraceRequest(0.0, 1000, 6, "", (0, 8)),
        TraceRequest(0.5, 3, 4, "", (0,), number=1),
    ]


def test_a_length_of_zero_is_one_token(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": 0, "input_length": 0, "output_length": 0}\n')
    assert list(read_trace(path)) == [TraceRequest(0.0, 1, 1)]


def test_columns_may_be_in_any_order_and_the_tier_may_be_absent(tmp_path: Path) -> None:
    path = written(tmp_path, "output_tokens,arrival_s,prompt_tokens\n7,0,9\n\n")
    assert list(read_trace(path)) == [TraceRequest(0.0, 9, 7)]


def test_a_summary_has_the_rate(tmp_path: Path) -> None:
    summary = summarise(written(tmp_path, OURS))
    assert (summary.requests, summary.span_s, summary.tiers) == (2, 0.5, ("chat", "coder"))
    assert summary.rate_rps == 4.0


HEAD = "arrival_s,prompt_tokens,output_tokens,tier\n"


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (HEAD + "0,1,1,a\n1,x,1,a\n", 'line 3, column 2 (prompt_tokens): "x" is not a whole number'),
        (HEAD + "0,1,-1,a\n", 'line 2, column 3 (output_tokens): "-1" is not a whole number'),
        (HEAD + "0,0,1,a\n", 'line 2, column 2 (prompt_tokens): "0" is not from 1 to 10000000'),
        (HEAD + "soon,1,1,a\n", 'line 2, column 1 (arrival_s): "soon" is not a number of seconds'),
        (HEAD + "nan,1,1,a\n", 'line 2, column 1 (arrival_s): "nan" is negative or not finite'),
        (HEAD + "0,1,1\n", "line 2, column 4: 3 cells, but the header has 4"),
        (HEAD + "0,1,1,a,b\n", "line 2, column 5: 5 cells, but the header has 4"),
        (HEAD + "\n\n0,1,?,a\n", 'line 4, column 3 (output_tokens): "?" is not a whole number'),
        (
            HEAD.replace("tier", "thinking_tokens") + "0,1,3,4\n",
            'line 2, column 4 (thinking_tokens): "4" is more than all 3 output tokens',
        ),
        (HEAD.replace("tier", "stage") + "0,1,3,-\n", 'line 2, column 4 (stage): "-" is not a whole number'),
        (HEAD, "line 1, column 1: no request in this trace"),
        ("", "line 1, column 1: no request in this trace"),
        ("a,b,c\n1,2,3\n", "line 1, column 1: unknown format; its header is arrival_s,"),
        (
            AZURE + "yesterday,1,1\n",
            'line 4, column 1 (TIMESTAMP): "yesterday" is not a time like 2023-11-16 18:17:03.9799600',
        ),
        (MOONCAKE + "{oops}\n", "line 3, column 2: not JSON: "),
        (MOONCAKE + "[]\n", "line 3, column 1: is not a JSON object"),
        ('{"timestamp": 1, "input_length": 1}\n', "line 1, column 1: has no output_length"),
        (
            '{"timestamp": 1, "input_length": "1", "output_length": 1}\n',
            'line 1, column 18: input_length "1" is not a whole number from 0 to 10000000',
        ),
        (
            '{"timestamp": true, "input_length": 1, "output_length": 1}\n',
            "line 1, column 2: timestamp true is not a number of milliseconds",
        ),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}\n',
            "line 1, column 57: hash_ids [-1] is not a list of whole numbers",
        ),
        (gzip.compress(HEAD.encode() + b"0,1,1,a\n" * 50, mtime=0)[:-9], "column 1: damaged gzip: "),
        (HEAD.encode() + b"0,1,1,\xff\xfe\n", "line 2, column 7: not UTF-8 text"),
    ],
)
def test_an_invalid_trace_names_file_line_and_column(tmp_path: Path, text: str | bytes, output: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as error:
        summarise(path)
    message = str(error.value)
    assert message.startswith(f"{path}: line ")
    assert output in message
    assert "\n" not in message


def test_a_line_that_is_too_long_is_named_and_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, HEAD + "0,1,1,a\n")
    monkeypatch.setattr("penstock_cli.traces.lines.LONGEST_LINE_BYTES", len(HEAD) + 1)
    assert summarise(path).requests == 1
    path = written(tmp_path, HEAD + "0,1,1," + "a" * len(HEAD) + "\n")
    with pytest.raises(TraceError, match="line 2, column 1: longer than"):
        summarise(path)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: No such file or directory"):
        summarise(tmp_path / "none.csv")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_neighbours_in_the_wrong_order_are_sorted(moments: list[int]) -> None:
    lines = [json.dumps({"timestamp": m * 1000, "input_length": 1, "output_length": 1}) for m in moments]
    parsed = [
        TraceRequest(request["timestamp"] / 1000, 1, 1) for request in (json.loads(line) for line in lines)
    ]
    ordered = trace_reading._in_order(Path("trace"), enumerate(parsed, start=1))
    assert [request.arrival_s for _, request in ordered] == sorted(float(m) for m in moments)


def test_stages_are_by_arrival_where_the_trace_has_none(tmp_path: Path) -> None:
    rows = [(5000, "a"), (0, "a"), (9000, "a"), (1000, "b"), (2000, None)]
    lines = [
        json.dumps({"timestamp": at, "input_length": 1, "output_length": 1, "session_id": session})
        for at, session in rows
    ]
    found = [
        (one.arrival_s, one.session, one.stage) for one in read_trace(written(tmp_path, "\n".join(lines)))
    ]
    assert found == [(0.0, "a", 0), (1.0, "b", 0), (2.0, "", 0), (5.0, "a", 1), (9.0, "a", 2)]
    csv = "arrival_s,prompt_tokens,output_tokens,session\n0,1,1,a\n1,1,1,a\n2,1,1,\n"
    assert [one.stage for one in read_trace(written(tmp_path, csv))] == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HEAD + "0,1,1,a\n1e20,1,1,a\n", "line 3, column 1: more than a year after"),
        (
            '{"timestamp":0,"input_length":1,"output_length":1}\n{"timestamp":1e300,"input_length":1,"output_length":1}',
            "line 2",
        ),
        ("\n\n", "line 1, column 1: no request"),
        ("", "line 1, column 1: no request"),
    ],
)
def test_traces_without_requests_or_longer_than_a_year_are_refused(
    tmp_path: Path, text: str, error: str
) -> None:
    with pytest.raises(TraceError, match=error):
        summarise(written(tmp_path, text))


def test_blank_lines_before_the_first_are_skipped(tmp_path: Path) -> None:
    assert summarise(written(tmp_path, "\n \n" + MOONCAKE)).requests == 2
    for text in ("\n \n" + MOONCAKE + "[]\n", "\n\n" + HEAD + "0,1,1,a\n1,1,x,a\n"):
        with pytest.raises(TraceError, match="line 5, column"):
            summarise(written(tmp_path, text))


def test_a_trace_far_out_of_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_reading, "REORDERED_REQUESTS", 2)
    rows = "".join(f"{moment},1,1,a\n" for moment in (5, 6, 7, 1))
    with pytest.raises(TraceError, match=r"line 5, column 1: arrives 4.000 s before a request"):
        summarise(written(tmp_path, HEAD + rows))


def test_the_shipped_excerpt_is_a_minute_of_two_tiers() -> None:
    examples = Path(__file__).resolve().parents[2] / "examples"
    summary = summarise(examples / "azure-excerpt.csv.gz")
    assert set(summary.tiers) == {"chat", "coder"}
    assert 55 < summary.span_s < 60


def test_a_long_value_is_quoted_up_to_40_characters(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": "%s", "input_length": 1, "output_length": 1}\n' % ("1" * 50))
    with pytest.raises(TraceError, match=rf'timestamp "{"1" * 39} is not a number of milliseconds'):
        summarise(path)


def test_a_trace_of_one_moment_has_no_rate(tmp_path: Path) -> None:
    summary = summarise(written(tmp_path, HEAD + "3,1,1,a\n3,1,1,a\n"))
    assert (summary.requests, summary.span_s, summary.rate_rps) == (2, 0.0, None)


@pytest.mark.parametrize("most", [10_000_000, 10_000_001])
def test_a_request_has_at_most_ten_million_tokens(tmp_path: Path, most: int) -> None:
    for text in (
        f"{HEAD}0,{most},1,a\n",
        f'{{"timestamp": 0, "input_length": {most}, "output_length": 1}}\n',
    ):
        path = written(tmp_path, text)
        if most == 10_000_000:
            assert summarise(path).requests == 1
        else:
            with pytest.raises(TraceError, match="to 10000000"):
                summarise(path)
