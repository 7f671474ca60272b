"""A pool may name a file that `penstock profile` wrote; invalid content is an error when it is read."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_pool import PoolError, load_pool, named_time_model
from penstock_pool.time_models import FORMAT, MOST_BYTES

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: test}
spec:
  model: {name: tiny}
  engine: {type: ENGINE, timeModel: models/tiny.json}
  tiers: [{name: chat, slo: {ttft: 1s, tpot: 100ms}}]
"""
MODEL = time_model("llama-3-8b-a100")


def pool_with(tmp_path: Path, engine: str = "openai", **changes: Any) -> Path:
    page = {"format": FORMAT, "model": "tiny", "time_model": to_json(MODEL), **changes}
    return pool_beside(tmp_path, orjson.dumps(page), engine)


def pool_beside(tmp_path: Path, content: bytes, engine: str = "openai") -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.json").write_bytes(content)
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.replace("ENGINE", engine))
    return file


def test_a_measured_model_is_found_beside_the_pools_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = load_pool(pool_with(tmp_path))
    monkeypatch.chdir("/")
    assert named_time_model(pool.spec.engine.time_model) == MODEL


def test_built_in_models_are_named_and_auto_has_no_model() -> None:
    assert named_time_model("llama-3-8b-a100") == MODEL
    assert named_time_model("auto") is None


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"model": "other"}, 'was measured with "other", this pool serves "tiny"; measure its engine'),
        ({"format": "2"}, 'has the format "2"; this reads penstock-time-model/1'),
        ({"time_model": {}}, "a field is missing or of a wrong type: 'terms'"),
        ({"time_model": to_json(MODEL) | {"scale": -1}}, "a coefficient is negative or not a number"),
        ({"time_model": to_json(MODEL) | {"scale": "1"}}, "a coefficient is negative or not a number"),
        ({"time_model": to_json(MODEL) | {"terms": ()}}, "an iteration would take no time"),
    ],
    ids=["another model", "another format", "no model", "negative", "text", "no terms"],
)
def test_an_invalid_model_file_is_one_clear_line(
    changes: dict[str, Any], output: str, tmp_path: Path
) -> None:
    with pytest.raises(PoolError) as error:
        load_pool(pool_with(tmp_path, **changes))
    (line,) = error.value.lines
    assert line.startswith(f"{tmp_path}/pool.yaml: spec.engine.timeModel: {tmp_path}/models/tiny.json ")
    assert output in line


def test_unknown_fields_of_a_later_versions_file_are_ignored(tmp_path: Path) -> None:
    pool = load_pool(pool_with(tmp_path, time_model=to_json(MODEL) | {"more": 1}))
    assert named_time_model(pool.spec.engine.time_model) == MODEL


@pytest.mark.parametrize("content", [b"{", b"[]", b" " * (1 << 21)], ids=["broken", "a list", "huge"])
def test_a_time_model_that_is_not_an_object_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="time model"):
        load_pool(pool_beside(tmp_path, content))


def test_a_file_may_be_as_long_as_its_bound(tmp_path: Path) -> None:
    page = orjson.dumps({"format": FORMAT, "model": "tiny", "time_model": to_json(MODEL)})
    file = pool_beside(tmp_path, page.ljust(MOST_BYTES))
    load_pool(file)
    (tmp_path / "models" / "tiny.json").write_bytes(page.ljust(MOST_BYTES + 1))
    with pytest.raises(PoolError, match=f"is longer than {MOST_BYTES} bytes; a time model is shorter"):
        load_pool(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = pool_with(tmp_path)
    (tmp_path / "models" / "tiny.json").unlink()
    with pytest.raises(PoolError, match=r"tiny\.json cannot be read: No such file or directory"):
        load_pool(file)


def test_a_simulated_engine_requires_a_built_in_model(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="a simulated engine cannot be measured"):
        load_pool(pool_with(tmp_path, engine="simulated"))
