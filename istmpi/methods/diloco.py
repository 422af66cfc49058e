"""DiLoCo (arXiv 2311.08105): local SGD whose mean is not taken over but followed, with Nesterov's momentum.

Rounds are long, some 100 local steps, and the local optimizer is usually AdamW.
"""

from istmpi.methods.local_sgd import LocalSGD


class DiLoCo(LocalSGD):
    """Local SGD with the outer step that a run has by default if its method bears this name."""
