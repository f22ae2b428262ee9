# The plugin of srun that speaks the language of the MPI library that mpi4py uses.
library=$("${container[@]}" "$python" -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
said = MPI.Get_library_version().strip("\0")
print(said.split("\n")[0], "of PyPI" * ("pypi.org" in said))') || finish 2 'mpi4py does not find an MPI library'
case $library in
  *CRAY*) fitting='cray_shasta pmi2' ;;
  *MPICH*'of PyPI') # pmi2 cuts the long addresses of its other network layer, UCX
    fitting=pmi2
    export MPIR_CVAR_CH4_NETMOD=${MPIR_CVAR_CH4_NETMOD:-ofi}
    ;;
  *MPICH* | *MVAPICH* | *Intel*) fitting=pmi2 ;;
  *'Open MPI'*) fitting=pmix ;;
  *) finish 2 "job.mpi=auto does not know $library; name one of srun --mpi=list" ;;
esac
offered=" $(srun --mpi=list 2>&1 | tr -s '[:space:]' ' ') " mpi=''
for candidate in $fitting; do
  case $offered in *" $candidate "*) mpi=${mpi:-$candidate} ;; esac
done
[ -n "$mpi" ] || finish 2 "$library needs srun --mpi=${fitting%% *}, which this SLURM does not have; try job.launcher=mpirun"
note "srun --mpi=$mpi for ${library%%,*}"
