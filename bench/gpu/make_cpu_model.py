"""Writes the model that stands in for a GPU's: `make_cpu_model.py FOLDER`, run with the Python of vLLM.

The example's, with a vocabulary to which the token ids of four digits belong that replays send.
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from tiny_model import tokenizer

VOCABULARY = 10_240


def main() -> None:
    words = tokenizer()
    words.add_tokens([f"w{number:05d} " for number in range(VOCABULARY - len(words))])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        torch_dtype="bfloat16",
    )
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    words.save_pretrained(folder)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main()
