#BSUB -J mpifed-synthetic-fedem
#BSUB -q main
#BSUB -P abc
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -R "affinity[core(2)]"
#BSUB -gpu "num=4"
#BSUB -W 60
#BSUB -r
#BSUB -oo /runs/x/job/bsub.out
python=/opt/venv/bin/python
container=()
launcher_options=()
max_restarts=100
cd / || exit 2
submission=('bsub')
scheduler=LSF
ranks=8 threads=2
warn_after=3540
mpirun=mpirun
run_dir=/runs/x
words=('synthetic-fedem' 'clients=4' 'rounds=6')
stop_files=('/runs/x/job/stop')
job=$LSB_JOBID nodes=$LSB_MCPU_HOSTS
exec >>"$run_dir/job/output.txt" 2>&1
watch &
launcher=(env -u SRUN_CPUS_PER_TASK -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK)
launcher+=("$mpirun" -n "$ranks" "${launcher_options[@]}")
note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"
