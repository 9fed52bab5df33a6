package nvmlhelper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/fault"
)

// version is set by the linker: -ldflags "-X berth.dev/berth/internal/nvmlhelper.version=v1.2.3".
var version = "dev"

const usage = `berth-nvml tells the agent of Berth about the NVIDIA GPUs of this host. The agent starts it.

  berth-nvml           answer requests on standard input, as the agent sends them, until it ends
  berth-nvml look      print the GPUs of this host as the agent would see them
  berth-nvml sample    print how busy they are
  berth-nvml version   print the version of this program and of its messages
`

// Main is the program; it returns the exit status.
func Main(args []string, in io.Reader, out, errs io.Writer) int {
	return run(open(errs), args, in, out, errs)
}

func run(c cards, args []string, in io.Reader, out, errs io.Writer) int {
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	var answer any
	var err error
	switch {
	case len(args) > 1:
		fmt.Fprint(errs, usage)
		return 2
	case verb == "":
		if err := serve(context.Background(), c, in, out, errs); err != nil {
			fmt.Fprintln(errs, text(err))
			return 1
		}
		return 0
	case verb == nvmlwire.MethodLook:
		answer, err = c.Look()
	case verb == nvmlwire.MethodSample:
		answer, err = c.Sample()
	case verb == "version":
		fmt.Fprintf(out, "%s %s, messages of version %d, %s %s/%s\n", nvmlwire.Program, version, nvmlwire.Version, runtime.Version(),
			runtime.GOOS, runtime.GOARCH)
		return 0
	case verb == "help" || verb == "-h" || verb == "--help":
		fmt.Fprint(out, usage)
		return 0
	default:
		fmt.Fprint(errs, usage)
		return 2
	}
	if err == nil {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(answer)
	}
	if err != nil {
		fmt.Fprintln(errs, text(err))
		return 1
	}
	return 0
}

// text is an error with its next step in one line.
func text(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Next != "" {
		return err.Error() + "; next: " + f.Next
	}
	return err.Error()
}
