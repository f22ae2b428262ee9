#SBATCH --job-name=mpifed-synthetic-fedem
#SBATCH --chdir=/
#SBATCH --output=/runs/x/job/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --ntasks=8
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --mem=100G
#SBATCH --partition=main
#SBATCH --account=abc
python=/opt/venv/bin/python
container=()
launcher_options=()
max_restarts=100
least_ranks=''
mpirun=mpirun
run_dir=/runs/x
words=('synthetic-fedem' 'clients=4' 'rounds=6')
stop_files=('/runs/x/job/stop')
launcher=(env -u SRUN_CPUS_PER_TASK -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK)
launcher+=("$mpirun" -n "$ranks" "${launcher_options[@]}")
note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"
