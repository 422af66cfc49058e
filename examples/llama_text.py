"""A small Llama of `transformers`, unchanged, for text. Its heads and its feed-forward units are dealt out.

istmpi model examples/llama_text.py:Llama --shape 64 --outputs 256 --tokens
mpirun -n 4 istmpi train --data text.h5 --model examples/llama_text.py:Llama --set optimizer.name=adamw --lr 0.002
"""

from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Llama(nn.Module):
    """The size of a head is not an argument, so fewer heads have the same size."""

    def __init__(self, shape, outputs, num_attention_heads=8, intermediate_size=384, hidden_size=192, layers=4):
        super().__init__()
        heads = {"num_attention_heads": num_attention_heads, "num_key_value_heads": num_attention_heads, "head_dim": 24}
        sizes = {"intermediate_size": intermediate_size, "hidden_size": hidden_size, "num_hidden_layers": layers}
        config = LlamaConfig(vocab_size=outputs, tie_word_embeddings=True, use_cache=False, **heads, **sizes)
        self.llama = LlamaForCausalLM(config)

    def forward(self, tokens):
        return self.llama(tokens).logits
