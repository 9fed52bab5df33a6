package cli

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

// maxBootstrap bounds a bootstrap script in bytes.
const maxBootstrap = 64 << 10

// createFlags are what run and session create have in common.
type createFlags struct {
	name      string
	resources []string
	options   []string
	environ   []string
	tag       string
	bootstrap string
	group     string
	priority  int
	timeout   time.Duration
	quiet     bool
}

func (f *createFlags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.name, "name", "", "name of the session (4 to 64 letters, digits, '-', '_', '.')")
	s.StringArrayVarP(&f.resources, "resource", "r", nil, "amount of a slot, such as cpu=1, mem=512m (repeatable)")
	s.StringArrayVar(&f.options, "resource-opt", nil, "resource option, such as shmem=128m (repeatable)")
	s.StringArrayVarP(&f.environ, "env", "e", nil, "environment variable K=V, or K to pass the own value on (repeatable)")
	s.StringVar(&f.tag, "tag", "", "free text shown with the session")
	s.StringVar(&f.bootstrap, "bootstrap", "", "file with a script to run in the container before anything else")
	s.StringVar(&f.group, "resource-group", "", "resource group to run in")
	s.IntVar(&f.priority, "priority", -1, "place in the queue from 0 to 100, higher is earlier (default: the manager's)")
	s.DurationVar(&f.timeout, "timeout", 0, "give up after this time, such as 90s or 10m (default: never)")
	s.BoolVarP(&f.quiet, "quiet", "q", false, "do not tell how it goes")
	s.Lookup("priority").DefValue = "0" // Keeps the help from naming -1.
	_ = cmd.MarkFlagFilename("bootstrap")
}

// request makes a create request for an image.
func (f *createFlags) request(a *app, image string) (api.CreateSession, error) {
	s := api.CreateSession{Name: f.name, Image: image, Type: api.TypeInteractive, Tag: f.tag, EnqueueOnly: true, ReuseIfExists: true}
	var err error
	if s.Config.Resources, err = pairs("--resource", f.resources, nil); err != nil {
		return s, err
	}
	if mem, ok := s.Config.Resources["mem"]; ok && strings.Trim(mem, "0123456789") == "" {
		s.Config.Resources["mem"] = mem + "m"
	}
	if s.Config.ResourceOpts, err = pairs("--resource-opt", f.options, nil); err != nil {
		return s, err
	}
	if s.Config.Environ, err = pairs("--env", f.environ, a.getenv); err != nil {
		return s, err
	}
	s.Config.ScalingGroup = f.group
	if f.priority >= 0 {
		s.Priority = &f.priority
	}
	if f.bootstrap != "" {
		b, err := os.ReadFile(f.bootstrap)
		if err != nil {
			return s, fmt.Errorf("read bootstrap script: %w", err)
		}
		if len(b) > maxBootstrap {
			return s, fmt.Errorf("bootstrap script %s is larger than %d KiB", f.bootstrap, maxBootstrap>>10)
		}
		s.BootstrapScript = string(b)
	}
	return s, nil
}

// pairs reads K=V; with getenv a bare K takes the value of the own environment.
func pairs(flag string, list []string, getenv func(string) string) (map[string]string, error) {
	m := map[string]string{}
	for _, item := range list {
		k, v, ok := strings.Cut(item, "=")
		if !ok && getenv != nil {
			v, ok = getenv(k), true
		}
		if !ok || k == "" {
			return nil, usage(hint(fmt.Errorf("%s %q is not of the form NAME=VALUE", flag, item), "berth run --help"))
		}
		m[k] = v
	}
	return m, nil
}

// randomName makes a name that nobody else uses.
func randomName(prefix string) string {
	b := make([]byte, 5)
	_, _ = rand.Read(b) // Never fails: see crypto/rand.
	return prefix + "-" + hex.EncodeToString(b)
}
