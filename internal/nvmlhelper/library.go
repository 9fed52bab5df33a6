//go:build cgo

package nvmlhelper

import (
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/fault"
)

// library is NVML and what this process remembers of the cards. Look and Sample are called one after the other.
type library struct {
	nvml nvml.Interface
	sys  fs.FS // /sys
	errs io.Writer

	opened chan struct{} // closed when the library answers

	mu       sync.Mutex
	open     bool
	seen     map[int]nvmlwire.GPU // by index in NVML, as they were when they answered last
	measured map[string]uint64    // by UUID: the driver's time of the newest measurement of processes that was read
}

func newLibrary(n nvml.Interface, sys fs.FS, errs io.Writer) *library {
	return &library{nvml: n, sys: sys, errs: errs, opened: make(chan struct{}), seen: map[int]nvmlwire.GPU{}, measured: map[string]uint64{}}
}

// ready loads and starts the library when that is not done. What fails is tried again with the next question: the driver may
// be loaded later.
func (l *library) ready() error {
	if l.open {
		return nil
	}
	switch ret := l.nvml.Init(); ret {
	case nvml.SUCCESS, nvml.ERROR_ALREADY_INITIALIZED:
		l.open = true
		close(l.opened)
		return nil
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		// The file of the library that this process has loaded is not the driver's any more.
		return fmt.Errorf("start NVIDIA's library: %w", stale{failure(ret)})
	default:
		return fmt.Errorf("start NVIDIA's library: %w", failure(ret))
	}
}

// devices returns the handles of the cards by index; nil stands for a card that gives none, with the reason.
func (l *library) devices() ([]nvml.Device, []nvml.Return, error) {
	n, ret := l.nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, l.lost("count the GPUs", ret)
	}
	if n > nvmlwire.MaxGPUs {
		return nil, nil, fault.Invalidf("NVIDIA's library counts %d GPUs, at most %d can be used", n, nvmlwire.MaxGPUs)
	}
	devices, why := make([]nvml.Device, n), make([]nvml.Return, n)
	for i := range n {
		if devices[i], why[i] = l.nvml.DeviceGetHandleByIndex(i); why[i] != nvml.SUCCESS {
			devices[i] = nil
		}
	}
	return devices, why, nil
}

// lost is the failure of a question about the host as a whole, after the library has once answered.
func (l *library) lost(verb string, ret nvml.Return) error {
	err := failure(ret)
	switch ret {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_GPU_IS_LOST:
		err = stale{err}
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// has reports whether the driver's library has a function. Calling one that it has not would end the process.
func (l *library) has(symbol string) bool { return l.nvml.Extensions().LookupSymbol(symbol) == nil }

// stale is a failure after which only a new process can ask again.
type stale struct{ error }

func (s stale) Unwrap() []error { return []error{s.error, errStale} }

// failure is what the library answered, in words and with the next step.
func failure(ret nvml.Return) error {
	say := func(msg, next string) error {
		return fault.Unavailablef("%s (NVML error %d)", msg, int(ret)).WithNext("%s", next)
	}
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return say("libnvidia-ml.so.1 could not be loaded",
			"install the libraries of the host's NVIDIA driver, or name their directory in LD_LIBRARY_PATH of the agent")
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return say("libnvidia-ml.so.1 is too old", "install a newer NVIDIA driver")
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return say("the NVIDIA driver is not loaded", "run modprobe nvidia as root, and see dmesg when that fails")
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return say("libnvidia-ml.so.1 and the loaded NVIDIA driver are of different versions",
			"restart the host, or unload the driver's kernel modules and load them again")
	case nvml.ERROR_NO_PERMISSION:
		return say("the NVIDIA driver does not permit it", "run the agent as root, or see the rights of /dev/nvidia*")
	case nvml.ERROR_GPU_IS_LOST:
		return say("the GPU has fallen off the bus or does not answer", "see dmesg for XID errors, and restart the host")
	case nvml.ERROR_RESET_REQUIRED:
		return say("the GPU needs a reset", "end what uses it, stop the agent, and run nvidia-smi --gpu-reset")
	case nvml.ERROR_INSUFFICIENT_POWER:
		return say("the GPU gets too little power", "see its power cables and dmesg")
	case nvml.ERROR_IRQ_ISSUE:
		return say("the host's kernel has trouble with the GPU's interrupts", "see dmesg, and restart the host")
	case nvml.ERROR_TIMEOUT:
		return say("the NVIDIA driver did not answer in time", "see dmesg for XID errors, and restart the host if it stays so")
	case nvml.ERROR_CORRUPTED_INFOROM:
		return say("the information ROM of the GPU is corrupt", "have the card replaced")
	}
	return say("NVIDIA's library answered "+ret.Error(), "see dmesg and nvidia-smi")
}
