"""A small Llama of `transformers`, as it comes: its heads and its feed-forward units are dealt out.

    istmpi model examples/llama.py:Llama
    mpirun -n 4 istmpi train --model examples/llama.py:Llama --set optimizer.name=adam --lr 0.003

It reads the rows of an image, or whatever the last axis of an example has, as tokens, and tells the class behind the
last one.
"""

from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Llama(nn.Module):
    """What is an argument can be dealt out; the residual stream and the size of a head are none, and stay whole."""

    def __init__(self, shape, outputs, num_attention_heads=8, intermediate_size=256, num_hidden_layers=2):
        super().__init__()
        sizes = {"hidden_size": 64, "head_dim": 16, "vocab_size": outputs, "num_key_value_heads": num_attention_heads}
        sizes |= {"num_attention_heads": num_attention_heads, "intermediate_size": intermediate_size}
        config = LlamaConfig(**sizes, num_hidden_layers=num_hidden_layers, tie_word_embeddings=True, use_cache=False)
        self.embed, self.llama = nn.Linear(shape[-1], 64), LlamaForCausalLM(config)

    def forward(self, x):
        return self.llama(inputs_embeds=self.embed(x.flatten(1, -2)), logits_to_keep=1).logits[:, -1]
