package device

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Preparer is implemented by drivers that make something on the host before a container uses its devices, such as a daemon.
type Preparer interface {
	// Prepare makes what a kernel's devices need. It may be repeated, also after the agent was killed; an allocation without this driver's
	// devices needs nothing.
	Prepare(ctx context.Context, kernel cluster.KernelID, a alloc.Allocation) error
	// Release takes it back: programs that still use the devices are ended first, in bounded time. It may be repeated, and a kernel for
	// which nothing was made is no error.
	Release(ctx context.Context, kernel cluster.KernelID) error
	// Prepared are the kernels for which something is there, also of an agent before this one.
	Prepared() []cluster.KernelID
}

// Prepare has every driver make what a kernel's devices need.
func (v *Inventory) Prepare(ctx context.Context, kernel cluster.KernelID, a alloc.Allocation) error {
	for _, d := range v.drivers {
		if p, ok := d.(Preparer); ok {
			if err := p.Prepare(ctx, kernel, a); err != nil {
				return fmt.Errorf("prepare devices of driver %s: %w", d.Name(), err)
			}
		}
	}
	return nil
}

// Release has every driver take back what it made for a kernel; one that fails keeps no other from it.
func (v *Inventory) Release(ctx context.Context, kernel cluster.KernelID) error {
	var errs []error
	for _, d := range v.drivers {
		if p, ok := d.(Preparer); ok {
			if err := p.Release(ctx, kernel); err != nil {
				errs = append(errs, fmt.Errorf("release devices of driver %s: %w", d.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// Prepared are the kernels for which a driver has made something.
func (v *Inventory) Prepared() []cluster.KernelID {
	var out []cluster.KernelID
	for _, d := range v.drivers {
		if p, ok := d.(Preparer); ok {
			out = append(out, p.Prepared()...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
