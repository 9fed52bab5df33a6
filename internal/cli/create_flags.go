package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// maxBootstrap bounds a bootstrap script in bytes.
const maxBootstrap = 64 << 10

// createFlags are what run and session create have in common.
type createFlags struct {
	name      string
	resources []string
	options   []string
	preset    string
	environ   []string
	tag       string
	bootstrap string
	group     string
	priority  int
	batch     string
	startsAt  string
	limit     string
	depends   []string
	size      int
	mode      string
	network   string
	roles     []string
	agents    []string
	mounts    []string
	protected bool
	rerun     bool
	retries   int
	dryRun    bool
	possible  bool
	timeout   time.Duration
	quiet     bool
}

func (f *createFlags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.name, "name", "", "name of the session (4 to 64 letters, digits, '-', '_', '.')")
	s.StringArrayVarP(&f.resources, "resource", "r", nil,
		"amount of a slot, such as cpu=1, mem=512m, gpu=0.5 (repeatable; default: of the preset)")
	s.StringVar(&f.preset, "preset", "", "named amounts, see berth preset list (default: what the image recommends, else preset default)")
	s.StringArrayVar(&f.options, "resource-opt", nil, "resource option, such as shmem=128m (repeatable)")
	s.StringVar(&f.network, "network", "",
		"host: the network of agents' hosts, where the resource group allows it (default: one of its own)")
	s.StringArrayVarP(&f.environ, "env", "e", nil, "environment variable K=V, or K to pass the own value on (repeatable)")
	s.StringArrayVarP(&f.mounts, "mount", "v", nil, "folder to mount, such as data, data:/home/work/data or data/sub:/mnt:ro (repeatable)")
	s.StringVar(&f.tag, "tag", "", "free text shown with the session")
	s.StringVar(&f.bootstrap, "bootstrap", "", "file with a script to run in the container before anything else")
	s.StringVar(&f.group, "resource-group", "", "resource group to run in")
	s.IntVar(&f.priority, "priority", -1, "place in the queue from 0 to 100, higher is earlier (default: the manager's)")
	s.StringVar(&f.batch, "batch", "", "shell command to run as a batch session")
	s.StringVar(&f.startsAt, "starts-at", "", "when a batch session may start: an ISO time or a delta such as 10m")
	s.StringVar(&f.limit, "batch-timeout", "", "end a batch session after this time, such as 2h")
	s.StringArrayVar(&f.depends, "depends", nil, "name or id of a session that must succeed first (repeatable)")
	s.IntVar(&f.size, "cluster-size", 1, "number of containers; main1 is the first, sub1, sub2 and so on the others")
	s.StringVar(&f.mode, "cluster-mode", "single-node", "single-node or multi-node: containers on one agent, or on any")
	s.StringArrayVar(&f.roles, "role", nil,
		"further containers NAME=COUNT[,image=IMAGE][,env=K=V][,bootstrap=FILE][,SLOT=AMOUNT...], such as worker=3,cpu=2 (repeatable)")
	s.StringArrayVar(&f.agents, "agent", nil, "agent to run on, for administrators (repeatable in multi-node)")
	s.BoolVar(&f.protected, "no-preempt", false, "never end it for sessions of higher priority")
	s.BoolVar(&f.rerun, "rerun-on-agent-loss", false, "start a batch session again when its agent is lost, although it may have run")
	s.IntVar(&f.retries, "retries", 0, "start a batch session again elsewhere when a device of it breaks, at most this often")
	s.BoolVar(&f.dryRun, "dry-run", false, "check everything and say where it would start or why it would wait, and create nothing")
	s.BoolVar(&f.possible, "fail-if-impossible", false, "refuse what no agent is large enough for now, instead of waiting for one")
	s.DurationVar(&f.timeout, "timeout", 0, "give up after this time, such as 90s or 10m (default: never)")
	s.BoolVarP(&f.quiet, "quiet", "q", false, "do not tell how it goes")
	s.Lookup("priority").DefValue = "0" // Keeps the help from naming -1.
	_ = cmd.MarkFlagFilename("bootstrap")
}

// request makes a create request for an image.
func (f *createFlags) request(ctx context.Context, a *verbs, c *api.Client, image string) (api.CreateSession, error) {
	s := api.CreateSession{Name: f.name, Image: image, Type: api.TypeInteractive, Tag: f.tag, EnqueueOnly: true, ReuseIfExists: true,
		Dependencies: f.depends, StartsAt: f.startsAt, BatchTimeout: f.limit, FailIfImpossible: f.possible}
	if f.batch == "" && (f.startsAt != "" || f.limit != "" || f.rerun || f.retries != 0) {
		return s, frame.Usage(frame.Hint(errors.New("--starts-at, --batch-timeout, --rerun-on-agent-loss and --retries need --batch"),
			"berth session create --help"))
	}
	if f.batch != "" {
		s.Type, s.StartupCommand = api.TypeBatch, f.batch
	}
	if f.size != 1 || f.mode != "single-node" || len(f.roles) > 0 {
		s.ClusterSize, s.ClusterMode = f.size, f.mode
	}
	if f.protected {
		s.Preemptible = new(false)
	}
	s.Config.AgentList, s.RerunOnAgentLoss, s.Retries = f.agents, f.rerun, f.retries
	var err error
	if s.Config.Resources, err = pairs("--resource", f.resources, nil); err != nil {
		return s, err
	}
	if err = mebibytes(ctx, c, s.Config.Resources); err != nil {
		return s, err
	}
	for _, text := range f.roles {
		role, err := parseRole(text)
		if err != nil {
			return s, err
		}
		if err := mebibytes(ctx, c, role.Resources); err != nil {
			return s, err
		}
		s.Roles = append(s.Roles, role)
	}
	if s.Config.ResourceOpts, err = pairs("--resource-opt", f.options, nil); err != nil {
		return s, err
	}
	if f.network != "" {
		if s.Config.ResourceOpts == nil {
			s.Config.ResourceOpts = map[string]string{}
		}
		s.Config.ResourceOpts["network"] = f.network
	}
	if s.Config.Environ, err = pairs("--env", f.environ, a.Getenv); err != nil {
		return s, err
	}
	if err = setMounts(&s.Config, f.mounts); err != nil {
		return s, err
	}
	s.Config.ScalingGroup, s.Config.Preset = f.group, f.preset
	if f.priority >= 0 {
		s.Priority = &f.priority
	}
	if f.bootstrap != "" {
		if s.BootstrapScript, err = readBootstrap(f.bootstrap); err != nil {
			return s, err
		}
	}
	return s, nil
}

func readBootstrap(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read bootstrap script: %w", err)
	}
	if len(b) > maxBootstrap {
		return "", fmt.Errorf("bootstrap script %s is larger than %d KiB", path, maxBootstrap>>10)
	}
	return string(b), nil
}

// parseRole reads NAME=COUNT[,image=IMAGE][,architecture=ARCH][,shmem=SIZE][,env=NAME=VALUE...][,bootstrap=FILE][,SLOT=AMOUNT...].
func parseRole(text string) (api.SessionRole, error) {
	bad := func(format string, args ...any) (api.SessionRole, error) {
		return api.SessionRole{}, frame.Usage(frame.Hint(fmt.Errorf("--role %q: "+format, append([]any{text}, args...)...),
			"write it as worker=3,image=python,cpu=2,mem=4g"))
	}
	first, rest, more := strings.Cut(text, ",")
	name, count, ok := strings.Cut(first, "=")
	n, err := strconv.Atoi(count)
	if !ok || name == "" || err != nil {
		return bad("it does not begin with a name and a number of containers")
	}
	role := api.SessionRole{Name: name, Count: n}
	for more {
		var item string
		item, rest, more = strings.Cut(rest, ",")
		k, v, ok := strings.Cut(item, "=")
		if !ok || k == "" || v == "" {
			return bad("%q is not of the form NAME=VALUE", item)
		}
		switch k {
		case "image":
			role.Image = v
		case "architecture":
			role.Architecture = v
		case "env":
			name, value, ok := strings.Cut(v, "=")
			if !ok || name == "" {
				return bad("%q is not of the form env=NAME=VALUE", item)
			}
			if role.Environ == nil {
				role.Environ = map[string]string{}
			}
			role.Environ[name] = value
		case "bootstrap":
			script, err := readBootstrap(v)
			if err != nil {
				return api.SessionRole{}, fmt.Errorf("role %s: %w", name, err)
			}
			role.BootstrapScript = &script
		case "shmem":
			role.ResourceOpts = map[string]string{k: v}
		default:
			if role.Resources == nil {
				role.Resources = map[string]string{}
			}
			role.Resources[k] = v
		}
	}
	return role, nil
}

// mebibytes makes bare numbers of slots that count bytes mean MiB.
func mebibytes(ctx context.Context, c *api.Client, resources map[string]string) error {
	bare := func(v string) bool { return v != "" && strings.Trim(v, "0123456789") == "" }
	if !slices.ContainsFunc(slices.Collect(maps.Values(resources)), bare) {
		return nil
	}
	known, err := c.Slots(ctx)
	if err != nil {
		return fmt.Errorf("ask for the units of resources: %w", err)
	}
	for name, v := range resources {
		if frame.Slots(known).Bytes(name) && bare(v) {
			resources[name] = v + "m"
		}
	}
	return nil
}

// hint says where to look when a session could not be created.
func (f *createFlags) hint(err error) error {
	if len(f.mounts) > 0 && api.IsNotFound(err) {
		return frame.Hint(err, "berth folder list, berth image list")
	}
	return frame.Hint(err, "berth image list, berth agent list")
}

// plan tells what would become of a request.
func (f *createFlags) plan(ctx context.Context, a *verbs, cmd *cobra.Command, c *api.Client, req api.CreateSession, asJSON bool) error {
	e, err := c.DryRun(ctx, req)
	if err != nil {
		return f.hint(err)
	}
	if asJSON {
		return frame.PrintJSON(cmd.OutOrStdout(), e)
	}
	return a.printExplanation(cmd.OutOrStdout(), frame.SlotsOf(ctx, c), e)
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
			return nil, frame.Usage(frame.Hint(fmt.Errorf("%s %q is not of the form NAME=VALUE", flag, item), "berth run --help"))
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
