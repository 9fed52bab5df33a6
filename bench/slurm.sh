#!/bin/bash
# The peer of BenchmarkEndToEnd: an array of short jobs in a Slurm of its own on this host, several slurmd beside one slurmctld.
# Prints "jobs-per-second N", "controller-cpu-seconds N" (slurmctld and munged) and "jobs-per-controller-cpu-second N".
#
#   bench/slurm.sh [JOBS [NODES]]        2000 jobs on 4 nodes of 64 cores; needs root and Debian's packages slurm-wlm and munge
#
# Exits with 77 where Slurm is not installed. Slurm saves the state of jobs up to 5 s after it acknowledged them.
set -euo pipefail
export PATH=$PATH:/usr/sbin LC_ALL=C
jobs=${1:-2000} nodes=${2:-4}
for tool in slurmctld slurmd sbatch squeue munged; do
	command -v "$tool" >/dev/null || { echo "bench/slurm.sh: $tool is not installed: apt-get install slurm-wlm munge" >&2; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "bench/slurm.sh: slurmd needs root" >&2; exit 77; }

dir=$(mktemp -d /tmp/berth-slurm.XXXXXX)
chmod 755 "$dir"
pids=()
steps() { # the processes of this Slurm's jobs; they outlive their slurmd
	local p
	for p in $(pgrep -x slurmstepd || true); do ls -l "/proc/$p/fd" "/proc/$p/cwd" 2>/dev/null | grep -qF "$dir/" && echo "$p"; done
	true
}
cleanup() {
	for _ in $(seq 100); do
		[ -z "$(steps)" ] && break
		sleep 0.1
	done
	[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
	for _ in $(seq 50); do
		alive=0
		for p in "${pids[@]}"; do kill -0 "$p" 2>/dev/null && alive=1; done
		[ $alive = 0 ] && break
		sleep 0.1
	done
	left=$(steps)
	[ -z "$left" ] || kill -9 $left 2>/dev/null || true
	[ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT

host=$(hostname -s)
mkdir -p "$dir"/{munge,state,spool}
chmod 711 "$dir/munge"
dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 status=none
chmod 400 "$dir/munge/key"
cat >"$dir/slurm.conf" <<CONF
ClusterName=bench
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MaxArraySize=100001
MaxJobCount=100000
MinJobAge=300
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[17001-$((17000 + nodes))] CPUs=64 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$dir/slurm.conf

munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
	--log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >/dev/null 2>&1 &
munged=$!
pids+=("$munged")
for _ in $(seq 100); do [ -S "$dir/munge/socket" ] && break; sleep 0.1; done
slurmctld -D >/dev/null 2>&1 &
ctld=$!
pids+=("$ctld")
for n in $(seq "$nodes"); do
	mkdir -p "$dir/spool/n$n"
	slurmd -D -N "n$n" >/dev/null 2>&1 &
	pids+=("$!")
done
for i in $(seq 300); do
	[ "$(sinfo -h -t idle -o %D 2>/dev/null || true)" = "$nodes" ] && break
	[ "$i" = 300 ] && { echo "bench/slurm.sh: the nodes do not become idle" >&2; tail -5 "$dir"/*.log >&2; exit 1; }
	sleep 0.2
done

ticks() { # of user and system time; fields of proc(5) after the name
	local t=0 p f
	for p in "$@"; do
		f=$(sed 's/.*) //' "/proc/$p/stat")
		set -- $f
		t=$((t + ${12} + ${13}))
	done
	echo "$t"
}
before=$(ticks "$munged" "$ctld")
began=$(date +%s%N)
id=$(sbatch --parsable --array="1-$jobs" --output=/dev/null --wrap=true)
while [ -n "$(squeue -h -j "$id" -o %i 2>/dev/null | head -1)" ]; do sleep 0.5; done
took=$(($(date +%s%N) - began))
used=$(($(ticks "$munged" "$ctld") - before))
awk -v n="$jobs" -v t="$took" -v u="$used" -v hz="$(getconf CLK_TCK)" 'BEGIN {
	printf "jobs-per-second %.1f\ncontroller-cpu-seconds %.2f\njobs-per-controller-cpu-second %.1f\n", n / (t / 1e9), u / hz, n / (u / hz) }'
