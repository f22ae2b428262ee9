"""A recipe of Spack: copied into packages/py_mpifed of a repository, ``spack install py-mpifed``.

tests/scripts/test_recipes.py holds it to pyproject.toml.
"""

from spack.package import depends_on, license, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMpifed(PythonPackage):
    """Federated learning, centralised and decentralised, simulated over MPI."""

    # The file that `python -m build --sdist` makes, in a mirror or a folder of the centre.
    url = "file:///sources/mpifed-1.0.0rc1.tar.gz"

    license("Apache-2.0")

    version("1.0.0rc1")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-annotated-types@0.6:", type=("build", "run"))
    depends_on("py-h5py@3.7:", type=("build", "run"))
    depends_on("py-jinja2@3.0:", type=("build", "run"))
    depends_on("py-matplotlib@3.6:", type=("build", "run"))
    depends_on("py-mpi4py@3.1.4:", type=("build", "run"))
    depends_on("py-networkx@2.8.8:", type=("build", "run"))
    depends_on("py-numpy@1.24:", type=("build", "run"))
    depends_on("py-pandas@2.2.2:3", type=("build", "run"))
    depends_on("py-pillow@9.2:", type=("build", "run"))
    depends_on("py-pydantic@2.8:2", type=("build", "run"))
    depends_on("py-pyyaml@6.0:", type=("build", "run"))
    depends_on("py-rich@13.0:", type=("build", "run"))
    depends_on("py-scikit-learn@1.2:", type=("build", "run"))
    depends_on("py-scipy@1.10:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.0:", type=("build", "run"))
    depends_on("py-torch@2.6:2", type=("build", "run"))
