"""Writes a tiny model with random weights, to try real vLLM without a GPU: `tiny_model.py FOLDER`.

A Llama of two layers with random weights, 0.8 MB, and a tokenizer whose tokens are bytes, so it accepts any
text. Its answers are random. It needs torch, transformers and tokenizers: run it with the Python of vLLM.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each byte, which needs no training."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=list(SPECIAL[3:]),
    )
    made.chat_template = CHAT
    return made


SIZES = {
    "vocab_size": 320,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}


def model(**other: int) -> LlamaForCausalLM:
    """Return the model, with the same random weights every time. other: sizes that replace `SIZES`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **{**SIZES, **other},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        torch_dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    """Write the model and the tokenizer into the folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(folder)
    model().save_pretrained(folder)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
