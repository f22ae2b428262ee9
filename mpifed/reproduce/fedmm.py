"""Figure 1 of Dieuleveut et al. 2025: which space to aggregate in."""

from __future__ import annotations

from mpifed.reproduce.study import Figure, Study

BOTH = "algorithm=[fedmm,fedmm_theta]"
OPTIONS = ("algorithm.batch=50", "algorithm.control_variate_rate=0.01", "algorithm.step=[0.05]")
SEEDS = "seed=[0,1,2,3,4,5,6,7,8,9]"

# Every figure, by name.
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Figure(
            f"figure-1-{data}",
            f"Figure 1 of FedMM: dictionary learning, {data} clients",
            ((f"fedmm-{data}", BOTH, *OPTIONS, SEEDS),),
            (("--figure", "objective", "--by", "algorithm.name"),),
        )
        for data in ("heterogeneous", "homogeneous")
    )
}
