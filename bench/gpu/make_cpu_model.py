"""Writes a model for CPUs, to replace that of a GPU: `make_cpu_model.py FOLDER`, run with the Python of vLLM.

It is the model of the example with a larger vocabulary, which includes the four-digit token ids of replays.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from tiny_model import model, tokenizer

VOCABULARY = 10_240


def main() -> None:
    words = tokenizer()
    words.add_tokens([f"w{number:05d} " for number in range(VOCABULARY - len(words))])
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    words.save_pretrained(folder)
    model(vocab_size=VOCABULARY).save_pretrained(folder)


if __name__ == "__main__":
    main()
