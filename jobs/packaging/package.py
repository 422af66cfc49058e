# Spack's recipe of istmpi. Copy it to packages/py_istmpi/ of your repository, and run in the project's folder:
#
#     spack dev-build py-istmpi@0.1.0 ^mpich
from spack.package import default_args, depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyIstmpi(PythonPackage):
    """Train a PyTorch network on several machines that are joined by a slow network, over MPI."""

    homepage = "https://arxiv.org/abs/1910.02120"
    pypi = "istmpi/istmpi-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")

    variant("plots", default=True, description="Pictures of runs and comparisons")

    depends_on("mpi", type=("build", "run"))
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-numpy@1.26:")
        depends_on("py-torch@2.7:2")
        depends_on("py-mpi4py@4:")
        depends_on("py-h5py@3.10:")
        depends_on("py-click@8.1:")
        depends_on("py-rich@13:")
        depends_on("py-msgspec@0.19:")
        depends_on("py-tomli@2:", when="^python@:3.10")
        depends_on("py-tomli-w@1:")
        depends_on("py-typing-extensions@4.6:")
        depends_on("py-matplotlib@3.8:", when="+plots")
