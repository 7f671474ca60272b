"""Writes a model for the bench: the example's tokenizer, and random weights of a larger model.

`make_model.py FOLDER`, run with the Python of vLLM. A step of the example's own model takes less
time than forwarding its tokens in Python, so the bench would measure Penstock's processes, not its decisions.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from tiny_model import model, tokenizer

LAYERS, WIDTH = 4, 256


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(folder)
    model(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        intermediate_size=3 * WIDTH,
        num_attention_heads=8,
        num_key_value_heads=4,
    ).save_pretrained(folder)


if __name__ == "__main__":
    main()
