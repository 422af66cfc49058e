"""A checkpoint's network with all that goes along with it, as the formats of exports take it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
import torch

from istmpi.checkpoint.reader import MOMENTS, Checkpoint
from istmpi.deploy.layers import Layer, Values, chunks, dtype_of, shape_of
from istmpi.deploy.program import EXAMPLES, chain_module, own_module, traced
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture


@dataclass(frozen=True)
class Content:
    """A checkpoint's network as the formats take it."""

    checkpoint: Checkpoint
    network: Architecture
    layers: list[Layer]
    ties: Mapping[str, str] = field(default_factory=dict)
    """As `OwnState` has them."""
    untied: tuple[str, ...] = ()
    problem: str = ""

    @property
    def own(self) -> bool:
        return not self.network.stages

    @property
    def metadata(self) -> dict[str, str]:
        """What goes along with a program: texts, all but one of them JSON."""
        header = self.checkpoint.header
        values = {
            "layers": [[layer.name, layer.kind, layer.settings] for layer in self.layers],
            "classes": self.checkpoint.classes,
            "data": asdict(header.data),
            "round": header.round,
            "run": header.run.tree(),
            "versions": dict(header.versions),
        }
        return {"format": "istmpi-export 1", **{name: json.dumps(value) for name, value in values.items()}}

    @property
    def metadata_of_state(self) -> dict[str, str]:
        """What goes along with a state: also what is no layer of it."""
        more = {"ties": self.ties} if self.ties else {}
        if self.own and (normalisation := self.checkpoint.normalisation):
            more["input"] = dict(zip(MOMENTS, (values.tolist() for values in normalisation.whole)))
        if self.own and (rescaling := self.checkpoint.rescaling):
            more["output"] = dict(zip(("factor", "shift"), (values.tolist() for values in rescaling)))
        return self.metadata | {name: json.dumps(value) for name, value in more.items()}

    @property
    def tensors(self) -> dict[str, Values]:
        """Every tensor once, by its name in the network's state; ConfigError where the class cannot have it."""
        self.require_state()
        return self.stored

    @property
    def stored(self) -> dict[str, Values]:
        """Every tensor once, by its name in the network's state."""
        return {
            f"{layer.name}.{kind}".lstrip("."): values
            for layer in self.layers
            for kind, values in layer.tensors.items()
        }

    def require_state(self) -> None:
        """Refuse, with a ConfigError, a network whose class cannot load its state."""
        if self.problem:
            raise ConfigError(f"{self.checkpoint.path}: {self.problem}; it has no state to load there. Use --to onnx.")

    @cached_property
    def state(self) -> dict[str, torch.Tensor]:
        """The whole state in memory, tied tensors under all of their names."""
        state = {}
        for name, values in self.stored.items():
            content = np.concatenate(list(chunks(values))).view(dtype_of(values))
            state[name] = torch.from_numpy(content).view(shape_of(values))
        return state | {name: state[first] for name, first in self.ties.items()}

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The whole network as a program, for examples as they are in the data."""
        if self.own:
            code = self.network.code
            if code.sparse or code.graph:
                what = "sparse rows, of any length" if code.sparse else "a graph, of any size"
                raise ConfigError(
                    f"{self.checkpoint.path}: a program takes examples of one shape, and this network takes {what}. "
                    f"Use --to safetensors or npz."
                )
            normalisation = self.checkpoint.normalisation
            around = normalisation and normalisation.whole, self.checkpoint.rescaling
            module = own_module(self.network, self.state, self.untied, *around)
            dtype = next(module.parameters()).dtype
            return traced(module, self.network.code.examples(EXAMPLES, dtype)[0], self.network.name)
        first = self.layers[0].settings
        module = chain_module(self.layers, self.state)
        features = first.get("num_features") or first["in_features"]
        x = torch.randn(EXAMPLES, features, generator=torch.Generator().manual_seed(0))
        return traced(module, x.to(next(module.parameters()).dtype), str(self.checkpoint.path))
