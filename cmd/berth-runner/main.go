// Command berth-runner is PID 1 of every container; see internal/runner.
package main

import (
	"os"

	"berth.dev/berth/internal/runner"
)

func main() { os.Exit(runner.Main(os.Args)) }
