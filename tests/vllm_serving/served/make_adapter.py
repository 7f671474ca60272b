"""Writes a random adapter for the tiny model, by vLLM's own Python: `make_adapter.py MODEL FOLDER`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 8


def weights(config: dict[str, int]) -> dict[str, torch.Tensor]:
    """Strong enough that answers differ from the model's own."""
    torch.manual_seed(1)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    values = hidden // heads * config["num_key_value_heads"]
    made = {}
    for layer in range(config["num_hidden_layers"]):
        for part, width in (("q_proj", hidden), ("v_proj", values)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            made[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden)
            made[f"{name}.lora_B.weight"] = torch.randn(width, RANK)
    return made


def main() -> None:
    model, folder = map(Path, sys.argv[1:])
    reported = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    reported |= {"target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": str(model)}
    (folder / "adapter_config.json").write_text(json.dumps(reported))
    save_file(weights(json.loads((model / "config.json").read_text())), folder / "adapter_model.safetensors")


if __name__ == "__main__":
    main()
