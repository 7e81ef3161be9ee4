# Builds the root of one lab host and becomes its init. Runs as pid 1 of fresh namespaces.
# $0 marks the process for clean-up; $1 lab id, $2 host name, $3 folder of the host; fd 3 is told when ready.
set -eu
root=$3/root
mount --make-rprivate /
mkdir -p "$root/usr" "$root/proc" "$root/sys" "$root/dev"
mount --bind "$root" "$root"
cd "$root"
mount --bind -o ro /usr usr
for dir in bin sbin lib lib32 lib64 libx32; do
	if [ -L "/$dir" ]; then
		[ -L "$dir" ] || ln -s "$(readlink "/$dir")" "$dir"
	elif [ -d "/$dir" ]; then
		mkdir -p "$dir"
		mount --bind -o ro "/$dir" "$dir"
	fi
done
mount --rbind /dev dev
mount -t proc proc proc
# A sysfs of this network namespace, with the machine's cgroups put back over it: dockerd needs both.
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
if mountpoint -q /sys/kernel/security; then
	mount --rbind /sys/kernel/security sys/kernel/security
fi
mkdir -p .machine
pivot_root . .machine
cd /
umount -l /.machine
rmdir /.machine
hostname "$2"
ip link set lo up
echo ready >&3
exec 3>&-
# dash reaps orphans while it waits, which is all an init must do here.
exec sh -c 'while :; do sleep 86400 & wait $!; done' "$0" "$1" "$2" "$3"
