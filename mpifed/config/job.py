"""The section ``job`` of an experiment, which asks SLURM for nodes, time and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

Count = Annotated[int, Ge(1)]

# A text which YAML takes for a number if it looks like one: an account, a size of memory.
Text = int | str


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The section ``job``: what SLURM is asked for. None leaves the choice to SLURM or to mpifed.

    Parameters
    ----------
    name : str or int, optional
        The name of the job in the queue; mpifed-EXPERIMENT by default.
    ranks : int, optional
        Ranks. Two of ``ranks``, ``nodes`` and ``ranks_per_node`` give the third.
    nodes : int or str, optional
        Nodes; with 2-4 and ``ranks_per_node``, each restart uses the nodes that are free.
    ranks_per_node : int, optional
        Ranks on each node.
    cpus_per_task : int
        Processors of a rank. Set the run's ``threads`` to the same number.
    mem : str or int, optional
        Memory of a node, such as 16G.
    mem_per_cpu : str or int, optional
        Memory of a processor.
    time : str or int
        The limit of time as SLURM writes it, hours:minutes:seconds, or minutes.
    warn_seconds : int
        Seconds before the limit at which the run is asked to stop. Allow for a round, a checkpoint
        and a minute.
    max_restarts : int
        How often the job queues itself again, for any cause.
    partition : str or int, optional
        The partition, as of sbatch.
    account : str or int, optional
        The account, as of sbatch.
    qos : str or int, optional
        The quality of service, as of sbatch.
    constraint : str or int, optional
        Features that nodes must have, as of sbatch.
    exclusive : bool
        Whether no other job shares the nodes.
    gpus_per_node : str or int
        GPUs of a node, as of ``--gres=gpu:``, such as 4 or a100:4. Ranks take them in turn.
    array_limit : int, optional
        Tasks of a sweep that run at a time.
    launcher : str
        What starts the ranks.
    mpi : str
        The plugin of srun; auto takes pmi2 for MPICH, pmix for Open MPI, cray_shasta for Cray's.
    mpirun : str, optional
        The path of the launcher; by default that beside ``python``, else that on the PATH.
    launcher_options : list of str, optional
        More words for the launcher, such as --cpu-bind=cores.
    python : str, optional
        The interpreter of the ranks; by default that of the submission.
    image : str, optional
        The file of a container in which every rank starts.
    container : str
        The program that starts the container.
    container_options : list of str, optional
        More words for it.
    modules : list of str, optional
        Modules to load.
    prologue : list of str, optional
        Lines of bash, run after modules are loaded.
    environment : dict of str, optional
        Variables to set.
    extra_directives : list of str, optional
        Further lines #SBATCH.
    """

    name: Text | None = None
    ranks: Count | None = None
    nodes: Count | str | None = None
    ranks_per_node: Count | None = None
    cpus_per_task: Count = 1
    mem: Text | None = None
    mem_per_cpu: Text | None = None
    time: Text = "01:00:00"
    warn_seconds: Count = 60
    max_restarts: Annotated[int, Ge(0)] = 100
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    exclusive: bool = False
    gpus_per_node: Text = 0
    array_limit: Count | None = None
    launcher: Literal["mpirun", "srun"] = "mpirun"
    mpi: str = "auto"
    mpirun: str | None = None
    launcher_options: list[Text] | None = None
    python: str | None = None
    image: str | None = None
    container: str = "apptainer"
    container_options: list[Text] | None = None
    modules: list[Text] | None = None
    prologue: list[str] | None = None
    environment: dict[str, Text] | None = None
    extra_directives: list[str] | None = None
