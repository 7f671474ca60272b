"""Whether answers pass the sidecar is the pool's word, where its engine can check tickets."""

from typing import Any

import pytest
from penstock_pool.engine_spec import EngineSpec
from pydantic import ValidationError

SIMULATED = {"type": "simulated", "timeModel": "llama-3-8b-a100"}


@pytest.mark.parametrize("engine", [{"type": "vllm"}, SIMULATED, {"type": "openai", "image": "any"}])
def test_answers_pass_through_the_sidecar_unless_the_pool_sets_another_path(engine: dict[str, Any]) -> None:
    assert not EngineSpec.model_validate(engine).direct


@pytest.mark.parametrize("engine", [{"type": "vllm"}, SIMULATED])
def test_engines_that_check_tickets_answer_routers_directly(engine: dict[str, Any]) -> None:
    assert EngineSpec.model_validate(engine | {"answerPath": "direct"}).direct


def test_an_external_engine_checks_no_tickets() -> None:
    with pytest.raises(ValidationError, match="direct needs an engine that checks the sidecar's tickets"):
        EngineSpec.model_validate({"type": "openai", "image": "any", "answerPath": "direct"})
