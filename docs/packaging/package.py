"""Not built. The recipe for Spack, which belongs into packages/py_mpishare of a repository of recipes."""

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMpishare(PythonPackage):
    """One copy per node of any array, as a plain NumPy view on every rank of an MPI job."""

    license("BSD-3-Clause")

    version("0.1.0")  # a release: the address and the sha256 of its source distribution

    variant("hdf5", default=True, description="Read and write HDF5, and save checkpoints")
    variant("numba", default=False, description="Atomic additions from compiled functions")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@61:", type="build")
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"), when="+hdf5")
    depends_on("py-numba@0.59:", type=("build", "run"), when="+numba")

    def test_serial(self):
        """One rank, without a launcher."""
        python = self.spec["python"].command
        python("-c", "import mpishare as ms; print(ms.info(), ms.zeros(3).sum())")
