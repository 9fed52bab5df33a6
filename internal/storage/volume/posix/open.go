package posix

import (
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

func open(o Options) (volume.Volume, error) {
	return nil, fault.Unavailablef("volume %q cannot be opened yet", o.Name)
}
