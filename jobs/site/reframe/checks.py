"""ReFrame's checks of dltrain on a system: it starts on all nodes as one job, sums are right and fast, one node and
several train, and images a second stay within a tolerance of a reference.

    reframe -C jobs/site/reframe/settings.py -c jobs/site/reframe/checks.py -r
    reframe … -S dltrain=/apps/dltrain/bin/dltrain -S mpi=pmi2 -S reference_images=8600

References are of one system. Measure them once with `--performance-report`, keep them in this file or in `-S`; without
one a check says what it measured and holds it to nothing.
"""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_after, run_before, sanity_function, variable


class Dltrain(rfm.RunOnlyRegressionTest):
    """What all checks have in common: one job, a rank a node, all cores of it."""

    dltrain = variable(str, value="dltrain")
    mpi = variable(str, value="pmix")  # as srun --mpi; pmi2 for MPICH, empty on a Cray
    tolerance = variable(float, value=0.1)
    ranks_a_node = variable(int, value=1)
    cores = variable(int, value=0)  # of a rank; 0: as Slurm gives
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    nodes = variable(int, value=1)

    @run_before("run")
    def one_job(self):
        self.executable = self.dltrain
        self.num_tasks = self.nodes * self.ranks_a_node
        self.num_tasks_per_node = self.ranks_a_node
        if self.cores:
            self.num_cpus_per_task = self.cores
            self.env_vars["SRUN_CPUS_PER_TASK"] = self.cores
        self.job.launcher.options = ["--kill-on-bad-exit"] + ([f"--mpi={self.mpi}"] if self.mpi else [])

    figure = None  # what is measured, and its unit

    def expected(self):
        """What is expected of the figure here; 0 is nothing."""
        return 0.0

    @run_before("performance")
    def held_to(self):
        """A reference with its tolerance below."""
        if self.figure and self.expected():
            name, unit = self.figure
            self.reference = {"*": {name: (self.expected(), -self.tolerance, None, unit)}}


@rfm.simple_test
class Starts(Dltrain):
    """`dltrain info` on two nodes: one job, no node twice."""

    nodes = 2
    executable_opts = ["info"]

    @sanity_function
    def is_one_job(self):
        return sn.assert_found(rf"^ranks\s+{self.num_tasks} on {self.nodes} nodes", self.stdout)


@rfm.simple_test
class Sums(Dltrain):
    """Allreduces of 64 MB over two nodes: each is checked element by element before its time is printed."""

    nodes = 2
    executable_opts = ["bench", "allreduce", "--algorithm", "ring", "--sizes", "64MB"]
    reference_bandwidth = variable(float, value=0.0)
    # Size, elements, iterations, algorithm, type; three times; GB/s of the sum and of a link; ratio; wrong elements.
    row = r"^\s*64 MB\s+\d+\s+\d+\s+ring\s+f32(?:\s+\S+){4}\s+(?P<rate>\S+)\s+\S+\s+0$"

    figure = ("bandwidth", "GB/s")

    def expected(self):
        return self.reference_bandwidth

    @sanity_function
    def is_right(self):
        return sn.assert_found(self.row, self.stdout)

    @performance_function("GB/s")
    def bandwidth(self):
        return sn.extractsingle(self.row, self.stdout, "rate", float)


class Trains(Dltrain):
    """Synthetic images: 10 steps and 100 that are timed."""

    model = variable(str, value="resnet50")
    batch = variable(int, value=32)
    last_line = r"^total images/sec: (?P<rate>\S+)$"
    reference_images = variable(float, value=0.0)  # a second, of one rank; each further rank is to add as many

    @run_before("run")
    def flags(self):
        self.executable_opts = ["--model", self.model, "--batch", str(self.batch)]

    figure = ("images", "images/s")

    def expected(self):
        return self.reference_images * self.num_tasks

    @sanity_function
    def ended(self):
        return sn.assert_found(self.last_line, self.stdout)

    @performance_function("images/s")
    def images(self):
        return sn.extractsingle(self.last_line, self.stdout, "rate", float)


@rfm.simple_test
class OneNode(Trains):
    """A node by itself."""


@rfm.simple_test
class ManyNodes(Trains):
    """Several nodes, held to as many images a second for each rank as one has by itself."""

    many = parameter([2, 4, 8])

    @run_after("init")
    def size(self):
        self.nodes = self.many
