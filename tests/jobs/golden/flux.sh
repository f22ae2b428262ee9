# flux: --job-name=mpifed-synthetic-fedem
# flux: --queue=main
# flux: --bank=abc
# flux: --nodes=2
# flux: --nslots=2
# flux: --cores-per-slot=8
# flux: --gpus-per-slot=4
# flux: --time-limit=3600s
# flux: --output=/runs/x/job/flux.out
python=/opt/venv/bin/python
container=()
launcher_options=()
max_restarts=100
cd / || exit 2
submission=('flux' '--parent' 'batch')
scheduler=Flux
ranks=8 threads=2
warn_after=3540
run_dir=/runs/x
words=('synthetic-fedem' 'clients=4' 'rounds=6')
stop_files=('/runs/x/job/stop')
job=$(flux getattr jobid) nodes=$(flux getattr hostlist)
exec >>"$run_dir/job/output.txt" 2>&1
watch &
launcher=(flux run --ntasks="$ranks" --cores-per-task="$threads" -o exit-on-error)
launcher+=(-o gpu-affinity=off) # every rank sees all GPUs of its node
launcher+=("${launcher_options[@]}")
pass_on() { flux job killall --force --signal=USR1; }
note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"
