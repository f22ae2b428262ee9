"""The figures of Gasanov et al. 2021, on mushrooms and sine waves (docs/flix-figures.md)."""

from __future__ import annotations

from mpifed.reproduce.study import Figure, Study

ALPHAS = "algorithm.flix_alpha=[1,0.1,0.01,0.001]"
SIZES = "compression.k=[1,22,45,67,90,113]"
BY_ALPHA = ("--by", "algorithm.flix_alpha")
GAP = ("--figure", "objective_gap")

# Every figure, by name.
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Figure(
            "figure-2",
            "Figures 2, 7 and 8 of FLIX: gradient descent",
            (("flix-gd", "algorithm.flix_alpha=[1,0.1,0.01,0.001,0.0001]"),),
            (
                (*GAP, *BY_ALPHA),
                ("--figure", "deployed_distance", *BY_ALPHA),
                (*GAP, "--x", "floats", *BY_ALPHA),
            ),
        ),
        Figure(
            "figure-3",
            "Figure 3 of FLIX: DIANA",
            (("flix-diana", ALPHAS, SIZES),),
            ((*GAP, "--x", "floats", *BY_ALPHA),),
        ),
        Figure(
            "figure-9",
            "Figures 9 and 10 of FLIX: DCGD",
            (("flix-dcgd", ALPHAS, "compression.k=[1,22,67,113]"),),
            ((*GAP, *BY_ALPHA), (*GAP, "--x", "floats", *BY_ALPHA)),
        ),
        Figure(
            "figure-11",
            "Figure 11 of FLIX: gradient descent without regularisation",
            (("flix-gd-convex", "evaluation.every=5", ALPHAS),),
            ((*GAP, *BY_ALPHA),),
        ),
        Figure(
            "figure-12",
            "Figure 12 of FLIX: DIANA without regularisation",
            (("flix-diana-convex", "evaluation.every=5", ALPHAS, "compression.k=[22,68,113]"),),
            ((*GAP, "--x", "floats", *BY_ALPHA),),
        ),
        Figure(
            "figure-4",
            "Figures 4 and 15 of FLIX: sine regression",
            (
                (
                    "flix-sine",
                    "rounds=1000",
                    "data.split=[10,20,30,40,50,60,70,80,90,100]",
                    "algorithm.flix_alpha=[0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1]",
                    "algorithm.start_from={previous}",
                    "algorithm.optima_from={first}",
                ),
            ),
            (("--figure", "test_loss", "--x", "algorithm.flix_alpha"),),
        ),
    )
}
