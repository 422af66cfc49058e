-- Lmod's module of istmpi. Install istmpi once for all users, and copy this file to a folder of MODULEPATH:
--
--     ISTMPI_VENV=/apps/istmpi/0.1.0 bin/quickstart
--     mkdir -p /apps/modulefiles/istmpi && cp jobs/packaging/istmpi.lua /apps/modulefiles/istmpi/0.1.0.lua
--
-- Then: module use /apps/modulefiles; module load istmpi

local root = "/apps/istmpi/0.1.0"

help([[istmpi trains a PyTorch network over MPI, on machines with slow links.
First run: mpirun -n 4 istmpi train
Machine: istmpi doctor]])

whatis("Name: istmpi")
whatis("Version: 0.1.0")
whatis("Description: Train a PyTorch network on several machines that are joined by a slow network, over MPI")

conflict("istmpi")
-- If istmpi was installed with the cluster's MPI, its module comes first, for example: depends_on("openmpi/5.0")
setenv("VIRTUAL_ENV", root)
prepend_path("PATH", pathJoin(root, "bin"))
