"""Whether a machine still computes as it did, and how fast: digests of one rank and of several.

reframe -C packaging/reframe/local.py -c packaging/reframe/mpifed_check.py -r
    --performance-report -S python=/path/to/venv/bin/python [-S digest=<what it was before>]
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (
    parameter,
    run_before,
    sanity_function,
    variable,
)

ROOT = Path(__file__).resolve().parents[2]
RUN = "-m mpifed.run synthetic-fedem clients=8 rounds=10 data.n_test=20 --quiet --output"
DIGEST = r'"state_digest": "(\w+)"'


@rfm.simple_test
class Mpifed(rfm.RunOnlyRegressionTest):
    """A short run on ranks, beside the same on one rank."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    ranks = parameter([2, 4])
    python = variable(str, value="python3")
    digest = variable(str, value="")
    benchmarks = variable(str, value="overhead")  # names that scripts/bench takes
    env_vars = {"OMP_NUM_THREADS": "1"}

    @run_before("run")
    def prepare(self):
        """Say what is run: a rank alone, the ranks, and lines of scripts/bench."""
        self.num_tasks = self.ranks
        self.prerun_cmds = [f"{self.python} {RUN} one"]
        self.executable = self.python
        self.executable_opts = [*RUN.split(), "many", "--expect-ranks", str(self.ranks)]
        bench = ROOT / "scripts" / "benchmarks" / "bench_training.py"
        self.postrun_cmds = [f"{self.python} {bench} {self.benchmarks} | tee bench.jsonl"]

    @sanity_function
    def same_digest(self):
        """Compare the digests with each other and with the one that is given."""
        one, many = (
            sn.extractsingle(DIGEST, f"{name}/summary.json", 1) for name in ("one", "many")
        )
        return sn.all([sn.assert_eq(one, many), sn.assert_eq(many, self.digest or many)])

    @run_before("performance")
    def lines_of_bench(self):
        """Make each line of scripts/bench a performance variable."""
        lines = map(json.loads, Path(self.stagedir, "bench.jsonl").read_text().splitlines())
        self.perf_variables = {
            line["name"]: sn.make_performance_function(sn.defer(line["value"]), line["unit"])
            for line in lines
        }
