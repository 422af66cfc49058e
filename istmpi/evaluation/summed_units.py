"""Computes a network whose last hidden layer stays with the owners of its units: all ranks pass the
same examples, and add up what their units contribute to the outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from istmpi.comm import Communicator
from istmpi.comm.allreduce import average_together
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.blocks import Parcel
from istmpi.evaluation.exchanges import SameExamples, list_owned_rows
from istmpi.network.leaves import Leaf
from istmpi.network.norms import Calibrated, Moments, compute_moments


class UnitSums:
    """The exchange if ranks add up the contributions of their units, once in each pass.

    All hidden layers before the last one are whole on every rank.
    """

    def __init__(
        self,
        store: ParameterStore,
        communicator: Communicator,
        hidden: Leaf,
        outputs: Leaf,
        norm: Calibrated | None,
    ):
        """``hidden``: the leaf whose rows are the units; ``outputs``: that which sums over them.
        ``norm``: the batch normalisation of the units, if there is one."""
        self._communicator = communicator
        self._hidden = hidden
        self._compute_rows = SameExamples(store, communicator).make_row_forward(hidden)
        self._outputs = outputs
        self._norm = norm
        owned = list_owned_rows(hidden, store)
        self._units = owned[store.rank]
        self._count = owned[-1].stop
        self._calibrates = False
        self._sampled: int | None = None
        self._beside: Parcel | None = None

    def begin_calibration(self, sampled: int | None, beside: Parcel | None) -> None:
        """Compute moments of the first ``sampled`` examples, or of all, in the next pass. The
        parcel ``beside`` travels with its sums."""
        self._calibrates = True
        self._sampled = sampled
        self._beside = beside

    def end_calibration(self) -> None:
        """Use the moments that were computed in the next passes."""
        self._calibrates = False
        self._beside = None

    def replace_leaves(self) -> None:
        """Make the leaves compute with this rank's units."""
        self._hidden.replace(self._compute_units)
        self._outputs.replace(self._add_up)

    def compute_moments(self, x: torch.Tensor, name: str, each: bool) -> Moments:
        """Return the moments ``[units]`` of the examples that calibrate, of ``x [b, units]``."""
        return compute_moments(x[: self._sampled], name, each)

    def _compute_units(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs ``[b, units]`` of the layer; those of other ranks' units are 0."""
        computed = self._compute_rows(x)
        outputs = computed.new_zeros(len(computed), self._count)
        outputs[:, self._units.start : self._units.stop] = computed
        return outputs

    def _add_up(self, h: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs ``[b, outputs]`` on every rank. Collective."""
        units = slice(self._units.start, self._units.stop)
        # Read at each pass, because the weight is loaded anew before an evaluation.
        weight = self._outputs.module.get_parameter("weight")
        sums = functional.linear(h[:, units], weight[:, units])
        parts = [sums.reshape(-1)]
        moments = self._find_moments()
        for values in moments:
            of_rank = torch.zeros_like(values)
            of_rank[units] = values[units]
            parts.append(of_rank)
        flat = torch.cat(parts)
        means: Sequence[torch.Tensor] = ()
        others: Sequence[torch.Tensor] = ()
        if self._beside:
            means = self._beside.means
            others = self._beside.sums
        average_together(means, self._communicator, sums=[*others, flat])
        added, *whole = flat.split([part.numel() for part in parts])
        for values, of_all_ranks in zip(moments, whole, strict=True):
            # In place, for the calibration has a reference to them.
            values.copy_(of_all_ranks)
        outputs = added.view(sums.shape)
        if self._outputs.module._parameters.get("bias") is None:
            return outputs
        return outputs + self._outputs.module.get_parameter("bias")

    def _find_moments(self) -> Moments | tuple[()]:
        """Return the moments of the units that this pass has computed; nothing if they are known.

        They travel with the sums, so that every rank gets those of all units."""
        if self._norm is None or not self._calibrates:
            return ()
        assert self._norm.moments is not None, "the normalisation comes before the sums"
        return self._norm.moments
