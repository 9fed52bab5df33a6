package storage

import (
	"log/slog"
	"maps"
	"slices"
	"strconv"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/cephfs"
	"berth.dev/berth/internal/storage/volume/posix"
	"berth.dev/berth/internal/storage/volume/xfs"
)

// opening is what a driver needs to open a volume.
type opening struct {
	name     string
	config   VolumeConfig
	uid, gid int
	reserve  int64
	log      *slog.Logger
}

// driver opens volumes of one backend.
type driver func(o opening) (volume.Volume, error)

// backendMemory is for tests, which bring the volume themselves.
const backendMemory = "memory"

// drivers are the backends by name.
var drivers = map[string]driver{
	"posix":  plain(posix.Open),
	"cephfs": plain(cephfs.Open),
	"xfs": plain(func(o posix.Options) (volume.Volume, error) {
		return xfs.Open(xfs.Options{Name: o.Name, Path: o.Path, UID: o.UID, GID: o.GID, Log: o.Log, Reserve: o.Reserve})
	}),
}

// plain is a driver without options of its own.
func plain(open func(posix.Options) (volume.Volume, error)) driver {
	return func(o opening) (volume.Volume, error) {
		if err := o.noOptions(); err != nil {
			return nil, err
		}
		return open(o.posix())
	}
}

// Backends lists the names of all backends, sorted.
func Backends() []string { return slices.Sorted(maps.Keys(drivers)) }

func (o opening) posix() posix.Options {
	return posix.Options{Name: o.name, Path: o.config.Path, UID: o.uid, GID: o.gid, Log: o.log, Reserve: o.reserve}
}

func (o opening) noOptions() error {
	for key := range o.config.Options {
		return fault.Invalidf("volume %s has the unknown option %q", o.name, key).
			WithNext("remove it: backend %s has no options", strconv.Quote(o.config.Backend))
	}
	return nil
}
