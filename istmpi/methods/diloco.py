"""DiLoCo (arXiv 2311.08105): local SGD whose mean is not taken over but followed, with Nesterov's momentum.

Rounds are long, some 100 local steps, and the local optimizer is usually AdamW.
"""

from istmpi.config import Run
from istmpi.methods.local_sgd import LocalSGD
from istmpi.methods.outer import Outer


class DiLoCo(LocalSGD):
    """Local SGD with the outer step that DiLoCo's authors recommend."""

    @classmethod
    def outer(cls, run: Run) -> Outer:
        return Outer.of(run, lr=0.7, momentum=0.9)
