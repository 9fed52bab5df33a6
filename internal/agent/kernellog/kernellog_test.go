package kernellog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClassify(t *testing.T) {
	for message, want := range map[string]string{
		"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls": "filesystem-error",
		"EXT4-fs (sda1): Remounting filesystem read-only":                      "filesystem-error",
		"EXT4-fs (sda1): mounted filesystem with ordered data mode":            "",
		"EXT4-fs (loop3): Remounting filesystem read-only":                     "",
		"EXT4-fs error (device loop3): ext4_journal_check_start":               "",
		"INFO: task kworker/0:1:12 blocked for more than 120 seconds.":         "stuck-task",
		"INFO: task a has nothing to say":                                      "",
		"mce: [Hardware Error]: Machine check events logged":                   "hardware-error",
		"EDAC MC0: 1 CE memory read error":                                     "",
		"EDAC MC0: 1 UE memory read error":                                     "hardware-error",
		"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.":          "gpu-error",
		"BUG: unable to handle page fault":                                     "kernel-bug",
		// The name of a program cannot raise an alarm.
		"BUG_: x[12]: segfault at 0":                  "",
		"traps: EXT4-fs error[12] trap divide error":  "",
		"Memory cgroup out of memory: Killed process": "",
	} {
		require.Equal(t, want, Classify(message), message)
	}
}

func TestParse(t *testing.T) {
	at, message, ok := Parse("3,1234,5000000,-;EXT4-fs error (device sda1): x\n SUBSYSTEM=block\n")
	require.True(t, ok)
	require.Equal(t, 5*time.Second, at)
	require.Equal(t, "EXT4-fs error (device sda1): x", message)
	for _, bad := range []string{"", "no record", "3,1;x", "x,1,2,-;m", "3,1,x,-;m", "3,1,-5,-;m",
		"12,1,2,-;EXT4-fs error (device sda1): written by a program"} {
		_, _, ok := Parse(bad)
		require.False(t, ok, bad)
	}
}

func TestAMissingLogKnowsNothing(t *testing.T) {
	l := &Log{Path: t.TempDir() + "/none"}
	require.Empty(t, l.Look(time.Now()))
	require.NoError(t, l.Close())
}

// FuzzParse: whatever the device gives is read without a panic.
func FuzzParse(f *testing.F) {
	f.Add("3,1234,5000000,-;EXT4-fs error\n")
	f.Fuzz(func(_ *testing.T, record string) {
		_, message, _ := Parse(record)
		Classify(message)
	})
}
