"""Subnets that weight each other by how well they told a text so far: the form ``likelihood``.

At place t of a text, subnet p has the weight w_p(t), which is proportional to the probability that
it gave to tokens 1 to t. The answer is log(sum_p w_p(t) softmax(z_p(t))). All subnets have the same
weight at the first token. Sources: Branch-Train-Merge (Li et al. 2022, arXiv 2208.03306) and DEMix
(Gururangan et al. 2021, arXiv 2108.05036), which call the weights a domain posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from istmpi.evaluation.blocks import Blocks, SharedBlocks
from istmpi.outputs import take_last

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

LIKELIHOOD = "likelihood"
STEP = 2**22
"""The number of elements that ranks gather at a time."""
IMPOSSIBLE = -1e6
"""The least log-probability of a token that was seen. With -inf in every subnet no weight would be
defined."""


class Answer:
    """The answer of the subnets that were added so far, for one batch of texts."""

    def __init__(self, tokens: torch.Tensor):
        """``tokens``: ``[b, t]`` int64, those that the subnets see."""
        self.tokens = tokens
        self.log_likelihood = torch.full(tokens.shape, -torch.inf, dtype=torch.float64)
        """The log of the sum over subnets of the probability of tokens 1 to t, ``[b, t]``."""
        self.log_probabilities = torch.empty(0)
        """The answer ``[b, t, vocabulary]``."""

    def add(self, subnet: nn.Module) -> None:
        """Add a subnet, which returns logits ``[b, t, vocabulary]`` of the token after each one."""
        logits = take_last(subnet(self.tokens))
        log_probabilities = logits.log_softmax(-1)
        following = self.tokens[:, 1:, None]
        seen = log_probabilities[:, :-1].gather(-1, following).squeeze(-1).clamp(min=IMPOSSIBLE)
        # A long text has a large sum, whose differences float32 would round.
        of_subnet = functional.pad(seen.double().cumsum(1), (1, 0))
        before = self.log_likelihood.to(of_subnet.device)
        self.log_likelihood = torch.logaddexp(before, of_subnet)
        if not self.log_probabilities.numel():
            self.log_probabilities = log_probabilities
            return
        self.log_probabilities = torch.logaddexp(
            self.log_probabilities + self._weigh(before).to(logits),
            log_probabilities + self._weigh(of_subnet).to(logits),
        )

    def _weigh(self, log_likelihood: torch.Tensor) -> torch.Tensor:
        """Return the log of the weight that belongs to a likelihood, ``[b, t, 1]``."""
        return (log_likelihood - self.log_likelihood).unsqueeze(-1)


class Mixture(Blocks):
    """Subnets whose ``forward`` returns log-probabilities of the next token."""

    def forward(self, *inputs: Any, **named: Any) -> Outputs:
        (tokens,) = inputs
        answer = Answer(tokens)
        for subnet in self.subnets.values():
            answer.add(subnet)
        return answer.log_probabilities


class SharedMixture(SharedBlocks):
    """A mixture spread over the ranks, which pass the same texts. Collective."""

    build = Mixture

    @torch.no_grad()
    def __call__(self, *inputs: Any, **named: Any) -> Outputs:
        (tokens,) = inputs
        answer = Answer(tokens)
        for subnet in self.module.subnets.values():
            answer.add(subnet)
        of_rank = answer.log_likelihood.cpu()
        if not self.counts:
            of_rank = torch.full_like(of_rank, -torch.inf)
        # One number for each token and rank, from which a rank knows its weight.
        of_ranks = torch.from_numpy(np.stack(self.communicator.allgather(of_rank.numpy())))
        log_weight = (of_rank - of_ranks.logsumexp(0)).unsqueeze(-1)
        log_probabilities = answer.log_probabilities.cpu()
        weighted = log_probabilities + log_weight.to(log_probabilities)
        return self._join(weighted).to(self.device)

    def _join(self, weighted: torch.Tensor) -> torch.Tensor:
        """Return the log of the sum over ranks of the weighted probabilities."""
        flat = weighted.reshape(-1)
        ranks = self.communicator.size
        for part in flat.split(STEP):
            gathered = self.communicator.allgatherv(part.numpy(), [len(part)] * ranks)
            # Logarithms travel, because float32 has no probability below 1e-38.
            part.copy_(torch.from_numpy(gathered).view(ranks, -1).logsumexp(0))
        return flat.view(weighted.shape)


class LocalMixture(SharedBlocks):
    """A mixture of which every rank passes texts of its own: the subnets travel to the texts, and a
    rank has one subnet at a time. Collective."""

    build = Mixture
    same_examples = False

    def _list_numbers(self, rank: int) -> Sequence[int]:
        return range(self.deal.ranks)

    def _take_weights(self) -> None:
        """Do nothing: weights are taken for each batch."""

    @torch.no_grad()
    def __call__(self, *inputs: Any, **named: Any) -> Outputs:
        (tokens,) = inputs
        answer = Answer(tokens)
        self._pass(answer)
        return answer.log_probabilities

    def finish(self) -> None:
        """Send subnets to ranks that have more batches, until no rank has any."""
        while self._pass(None):
            pass

    def _pass(self, answer: Answer | None) -> bool:
        """Add all subnets to an answer, if this rank has one; return False if no rank has one."""
        passing = self.communicator.allreduce_sum(np.array([float(answer is not None)]))
        if not passing:
            return False
        ranks = self.deal.ranks
        for turn in range(ranks):
            # Each rank begins with its own subnet, so that no owner sends to all at a time.
            numbers = [(rank + turn) % ranks for rank in range(ranks)]
            self._take_turn(numbers, self.architecture.parameters)
            if answer is not None:
                answer.add(self.module.subnets[str(numbers[self.communicator.rank])])
            self.release()
        return True


def choose_network(form: str, local: bool) -> type[SharedBlocks]:
    """Return the class of a network of subnets; ``local``: True if each rank scores data of its
    own."""
    if form != LIKELIHOOD:
        return SharedBlocks
    if local:
        return LocalMixture
    return SharedMixture


def choose_module(form: str | None) -> type[Blocks]:
    """Return the class of all subnets in one process."""
    if form == LIKELIHOOD:
        return Mixture
    return Blocks
