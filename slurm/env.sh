# shellcheck shell=bash
# Settings common to the batch scripts of this folder, which source it. Change it to fit your site.

# The Python environment of the job: the one that is active at sbatch, else .venv in the folder of submission.
if [ -z "${VIRTUAL_ENV:-}" ]; then
  # shellcheck source=/dev/null
  . "${MPISHARE_VENV:-.venv}/bin/activate"
fi

# One thread a rank, unless the resources above the job say otherwise.
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# Open MPI prints a message at every window unless told not to ask UCX for one-sided windows.
export OMPI_MCA_osc="${OMPI_MCA_osc:-^ucx}"
