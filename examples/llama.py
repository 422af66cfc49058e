"""A small Llama of `transformers`, unchanged. Its heads and its feed-forward units are dealt out.

    istmpi model examples/llama.py:Llama
    mpirun -n 4 istmpi train --model examples/llama.py:Llama --set optimizer.name=adam --lr 0.003

It reads the rows of an image, or of another example's last axis, as tokens, and predicts the class after the last one.
``hidden_size`` is the width of the residual stream, which stays whole unless ``method.partition`` names it. It must be
a multiple of the heads, also of those of a rank: 96 is a multiple of 8, 4, 3, 2 and 1.
"""

from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Llama(nn.Module):
    """Arguments can be dealt out. The size of a head is not an argument, so fewer heads have the same size."""

    def __init__(self, shape, outputs, num_attention_heads=8, intermediate_size=256, hidden_size=96, layers=2):
        super().__init__()
        heads = {"num_attention_heads": num_attention_heads, "num_key_value_heads": num_attention_heads, "head_dim": 16}
        sizes = {"intermediate_size": intermediate_size, "hidden_size": hidden_size, "num_hidden_layers": layers}
        config = LlamaConfig(vocab_size=outputs, tie_word_embeddings=True, use_cache=False, **heads, **sizes)
        self.embed, self.llama = nn.Linear(shape[-1], hidden_size), LlamaForCausalLM(config)

    def forward(self, x):
        return self.llama(inputs_embeds=self.embed(x.flatten(1, -2)), logits_to_keep=1).logits[:, -1]
