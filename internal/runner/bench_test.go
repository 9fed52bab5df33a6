package runner_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/jupyter"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

type nowhere struct{}

func (nowhere) Text(string, string)       {}
func (nowhere) TextNow(string, string)    {}
func (nowhere) MediaNow(string, string)   {}
func (nowhere) Congested() bool           { return false }
func (nowhere) Relieved() <-chan struct{} { return nil }
func (nowhere) Ask(bool) cell.Answer      { return cell.Answer{None: true} }

// BenchmarkCell compares one cell through the runner's socket with the same cell sent to an
// ipykernel directly; both in one run, so that their ratio means something on any machine.
func BenchmarkCell(b *testing.B) {
	python := os.Getenv("BERTH_TEST_IPYKERNEL")
	if python == "" {
		python = "/usr/bin/python3"
	}
	if exec.Command(python, "-c", "import ipykernel").Run() != nil {
		b.Skip("set BERTH_TEST_IPYKERNEL to a python3 that has ipykernel")
	}
	t := &testing.T{}
	b.Run("direct", func(b *testing.B) {
		dir, err := os.MkdirTemp("/tmp", "bk")
		require.NoError(b, err)
		defer os.RemoveAll(dir)
		conn := jupyter.NewConnection(filepath.Join(dir, "k"))
		file := filepath.Join(dir, "k.json")
		require.NoError(b, conn.WriteFile(file, 0o600))
		cmd := exec.Command(python, "-m", "ipykernel_launcher", "-f", file, "--HistoryManager.enabled=False")
		require.NoError(b, cmd.Start())
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		c, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		k, err := jupyter.Connect(c, conn, func(string, string) {})
		require.NoError(b, err)
		defer k.Close()
		for b.Loop() {
			code, err := k.Execute("1+1", false, nowhere{})
			if err != nil || code != 0 {
				b.Fatal(code, err)
			}
		}
	})
	for _, how := range []string{"ipykernel", "shim"} {
		b.Run("runner-"+how, func(b *testing.B) {
			cfg := config(t)
			defer os.RemoveAll(cfg.Dir)
			cfg.Runtime = run.RuntimeConfig{Type: "python", Path: python}
			if how == "shim" {
				cfg.Env["BERTH_NO_IPYKERNEL"] = "1"
			}
			box := start(t, cfg)
			defer func() {
				_ = box.cmd.Process.Kill()
				await.Value(b, box.exit)
			}()
			box.query("warm", "pass")
			i, from := 0, int64(0)
			for b.Loop() {
				i++
				res, err := box.c.Step(context.Background(), fmt.Sprint(i),
					run.StepRequest{Mode: run.ModeQuery, Code: "1+1", From: &from, WaitMS: 2000})
				if err != nil || res.Status != run.StatusFinished || res.Console[0].Data != "2\n" {
					b.Fatal(res, err)
				}
			}
		})
	}
}
