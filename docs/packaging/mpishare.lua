-- Loaded by Lmod 8.6. A module file for an installation by:
-- pip install --no-deps --no-build-isolation --prefix=PREFIX mpishare-0.1.0.tar.gz
help([[One copy per node of any array, as a plain NumPy view on every rank of an MPI job]])
whatis("Version: 0.1.0")

-- The modules of this site that hold mpi4py 4.0 or later, NumPy, and the Python they were built for; here EasyBuild's.
depends_on("mpi4py", "SciPy-bundle")
conflict("mpishare")

local prefix = "/path/to/prefix" -- PREFIX
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("PYTHONPATH", pathJoin(prefix, "lib/python3.13/site-packages"))
