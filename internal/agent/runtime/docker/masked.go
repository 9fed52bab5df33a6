package docker

import "slices"

// hidden are files and directories of /proc and /sys that containers see empty. An engine asked to hide something hides nothing of its
// own accord, so the list begins with all that engines of any version hide.
func hidden() []string { return slices.Concat(hiddenByEngines, hiddenDisks) }

var hiddenByEngines = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
	"/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
}

// hiddenDisks name the loop devices of the host with the paths of their files, which hold the ids of other tenants' kernels, and tell
// how much each of them writes.
var hiddenDisks = []string{"/sys/devices/virtual/block", "/sys/fs/ext4"}
