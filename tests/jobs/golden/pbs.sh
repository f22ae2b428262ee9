#PBS -N mpifed-synthetic-fedem
#PBS -q main
#PBS -A abc
#PBS -l select=2:ncpus=8:mpiprocs=4:ngpus=4:mem=100gb
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -j oe
#PBS -o /runs/x/job/qsub.out
python=/opt/venv/bin/python
container=()
launcher_options=()
max_restarts=100
cd / || exit 2
submission=('qsub')
scheduler=PBS
ranks=8 threads=2
warn_after=3540
mpirun=mpirun
run_dir=/runs/x
words=('synthetic-fedem' 'clients=4' 'rounds=6')
stop_files=('/runs/x/job/stop')
job=$PBS_JOBID nodes=$(sort -u "$PBS_NODEFILE" | paste -sd,)
exec >>"$run_dir/job/output.txt" 2>&1
watch &
launcher=(env -u SRUN_CPUS_PER_TASK -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK)
launcher+=("$mpirun" -n "$ranks" "${launcher_options[@]}")
note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"
