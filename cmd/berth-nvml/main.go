// Command berth-nvml tells the agent about the NVIDIA GPUs of its host; see internal/nvmlhelper. It is a program of its own
// because NVIDIA's library needs cgo and can hang in the driver.
package main

import (
	"os"

	"berth.dev/berth/internal/nvmlhelper"
)

func main() { os.Exit(nvmlhelper.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
