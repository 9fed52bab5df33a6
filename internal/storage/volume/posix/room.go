package posix

import (
	"context"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/diskspace"
	"berth.dev/berth/internal/fault"
)

const (
	// reserveShare is the largest part of a volume that is kept free, in percent.
	reserveShare = 5
	// roomStep is how many bytes are written before the file system is asked again.
	roomStep = 16 << 20
)

// room is how much may be written before it must be asked for again. Where the volume has no more free than its reserve it is
// Exhausted: the reserve is for the platform, which may lie on the same disk, and for what makes room.
func (v *vol) room() (int64, error) {
	if v.opt.Reserve <= 0 {
		return roomStep, nil
	}
	var st unix.Statfs_t
	if err := v.root.do(func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return 0, err
	}
	unit := st.Frsize
	if unit <= 0 {
		unit = st.Bsize
	}
	u := diskspace.Usage{Total: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit}
	kept := diskspace.Mark{Percent: reserveShare, Bytes: v.opt.Reserve}.Of(u.Total)
	if u.Free <= kept {
		return 0, fault.Exhaustedf("%s is full: it has %s free, which is kept in reserve", v.what(), diskspace.Text(u.Free)).
			WithReason("volume-full").WithNext("delete files and empty the trash, or ask the administrator to enlarge this volume")
	}
	return min(u.Free-kept, roomStep), nil
}

// stopWithoutRoom ends a copy when the volume has no room beside its reserve. It is called now and then while the copy runs.
func (v *vol) stopWithoutRoom(cancel context.CancelCauseFunc) {
	if _, err := v.room(); fault.Is(err, fault.Exhausted) {
		cancel(err)
	}
}
