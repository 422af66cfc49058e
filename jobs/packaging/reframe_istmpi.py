# ReFrame's tests of an installed istmpi: reframe -C SITE.py -c jobs/packaging/reframe_istmpi.py -r
# The site's configuration names systems and launchers. Choose a module with: -S modules=istmpi/0.1.0
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_before, sanity_function, variable

MEGABYTES = {"kB": 1e-3, "MB": 1, "GB": 1e3}


class IstmpiTest(rfm.RunOnlyRegressionTest):
    """A command of istmpi on all ranks."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "istmpi"
    ranks = variable(int, value=4)
    threads = variable(int, value=1)

    @run_before("run")
    def set_ranks(self):
        self.num_tasks = self.ranks
        self.num_cpus_per_task = self.threads
        self.env_vars["OMP_NUM_THREADS"] = self.threads


@rfm.simple_test
class IstmpiDoctor(IstmpiTest):
    descr = "Ranks reach each other"
    executable_opts = ["doctor"]

    @sanity_function
    def require_ring(self):
        # A red line is exit code 1, which fails the job.
        ring = sn.assert_found(r"ring +all ranks can reach each other", self.stdout)
        ranks = sn.extractsingle(r"MPI +.*: (\d+) ranks see each other", self.stdout, 1, int)
        return sn.all([ring, sn.assert_eq(ranks, self.ranks), sn.assert_eq(self.job.exitcode, 0)])


@rfm.simple_test
class IstmpiTrain(IstmpiTest):
    descr = "The built-in digits are learned; seconds and megabytes are recorded"
    method = parameter(["ist", "local-sgd", "data-parallel"])
    accuracy = variable(float, value=0.9)

    @run_before("run")
    def set_options(self):
        self.executable_opts = ["train", "digits", "--method", self.method, "--out", "run"]

    @sanity_function
    def require_accuracy(self):
        scores = sn.extractall(r"^round (\d+)/\1 .* accuracy ([\d.]+)", self.stdout, 2, float)
        return sn.all([sn.assert_ge(scores[-1], self.accuracy), sn.path_isfile("run/network.h5")])

    @performance_function("s")
    def seconds(self):
        return sn.extractsingle(r"^round (\d+)/\1 +([\d.]+) s", self.stdout, 2, float)

    @performance_function("MB")
    def sent(self):
        sent = sn.extractsingle(r"^sent +([\d.]+) (kB|MB|GB)", self.stdout, (1, 2), (float, str))
        return sent[0] * MEGABYTES[sent[1].evaluate()]
