//go:build cgo

package nvmlhelper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
)

const (
	// eventWait is how long the library waits for one event before it is asked again; no end of this process waits longer.
	eventWait = time.Second
	// watchAgain is the pause after the events could not be watched.
	watchAgain = 30 * time.Second
)

// Watch tells the XID errors of all cards until ctx ends.
func (l *library) Watch(ctx context.Context, tell func(nvmlwire.Event)) {
	select {
	case <-ctx.Done():
		return
	case <-l.opened:
	}
	said := ""
	for {
		err := l.watch(ctx, tell)
		if ctx.Err() != nil {
			return
		}
		if now := text(err); now != said { // once, not every time
			said = now
			fmt.Fprintf(l.errs, "XID errors cannot be watched, which is tried again every %s: %s\n", watchAgain, now)
		}
		pause := time.NewTimer(watchAgain)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// watch waits for the events of the cards that are there, until ctx ends or the library fails.
func (l *library) watch(ctx context.Context, tell func(nvmlwire.Event)) error {
	set, ret := l.nvml.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("make a set of events: %w", failure(ret))
	}
	defer func() { _ = set.Free() }() // nobody can do anything about it
	devices, _, err := l.devices()
	if err != nil {
		return err
	}
	// A card that has fallen off the bus does not tell its UUID any more.
	uuids := map[nvml.Device]string{}
	for _, d := range devices {
		if d == nil {
			continue
		}
		uuid, ret := d.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		if kinds, ret := d.GetSupportedEventTypes(); ret != nvml.SUCCESS || kinds&nvml.EventTypeXidCriticalError == 0 {
			continue
		}
		if d.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			uuids[d] = uuid
		}
	}
	if len(uuids) == 0 {
		return errors.New("no GPU of this host tells its errors")
	}
	for ctx.Err() == nil {
		switch data, ret := set.Wait(uint32(eventWait.Milliseconds())); ret {
		case nvml.SUCCESS:
			if uuid := uuids[data.Device]; uuid != "" && data.EventType&nvml.EventTypeXidCriticalError != 0 {
				tell(nvmlwire.Event{UUID: uuid, XID: data.EventData})
			}
		case nvml.ERROR_TIMEOUT:
		default:
			return fmt.Errorf("wait for an event: %w", failure(ret))
		}
	}
	return ctx.Err()
}
