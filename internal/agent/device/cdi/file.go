package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Class is what a file describes: the devices of one kind, which fill one slot.
type Class struct {
	// Slot is the slot's name, Count how it is counted: count (the default) or unique.
	Slot  cluster.SlotName `toml:"slot"`
	Count cluster.SlotKind `toml:"count"`
	// Kind is the kind of the devices in their specifications: vendor.com/class.
	Kind string `toml:"kind"`
	// SpecDirs hold the specifications; of a device that several describe the last directory counts. Left out they are /etc/cdi and
	// /var/run/cdi.
	SpecDirs []string `toml:"spec_dirs"`
	// Names is a regular expression for the whole name of a device; others are left alone. Left out it is every name but "all".
	Names string `toml:"names"`
	// Capacity is how many kernels one device serves at a time; left out it is 1.
	Capacity int `toml:"capacity"`
	// Sysfs is the directory of a device below /sys, by which its PCI address and NUMA node are found.
	Sysfs string `toml:"sysfs"`
	// Model is the devices' model, ModelFile a file below /sys that names it, Memory their memory: "96g".
	Model     string `toml:"model"`
	ModelFile string `toml:"model_file"`
	Memory    string `toml:"memory"`
	// HCA says that they are network adapters, which are chosen near to the accelerators of a kernel. Their slot ends in ".hca".
	HCA bool `toml:"hca"`
	// IgnoreHooks are programs, or their first arguments, that need not run when this agent applies the edits itself.
	IgnoreHooks []string `toml:"ignore_hooks"`
	// Env are variables of containers that have some: {names} and {count} stand for what they have.
	Env     map[string]string `toml:"env"`
	Metrics Command           `toml:"metrics"`
	Health  Health            `toml:"health"`
}

// Command is a program that tells of all devices of a class. No shell is involved.
type Command struct {
	Command []string `toml:"command"`
	// Every is the least time between two runs, Timeout how long one may take.
	Every   string `toml:"every"`
	Timeout string `toml:"timeout"`
}

// Health tells which devices work.
type Health struct {
	// File is a file below /sys, Healthy a regular expression that a part of its first line matches while the device works.
	File    string   `toml:"file"`
	Healthy string   `toml:"healthy"`
	Command []string `toml:"command"`
	Every   string   `toml:"every"`
	Timeout string   `toml:"timeout"`
}

// Bounds of a description and of what commands may take.
const (
	maxFile        = 1 << 20
	maxFiles       = 64
	defaultEvery   = 30 * time.Second
	minEvery       = 5 * time.Second
	defaultTimeout = 3 * time.Second
	maxTimeout     = 4 * time.Second // two of them fit into one look
	maxCapacity    = 1024
)

var defaultDirs = []string{"/etc/cdi", "/var/run/cdi"}

// suffixHCA is how slots of network adapters end. Package alloc knows them by it.
const suffixHCA = ".hca"

// Read reads descriptions from files, and of directories every file in them that ends in .toml, in the order of their names.
func Read(places []string) ([]Class, error) {
	var files []string
	for _, place := range places {
		list, err := filesOf(place)
		if err != nil {
			return nil, err
		}
		files = append(files, list...)
	}
	if len(files) > maxFiles {
		return nil, fault.Invalidf("agent.cdi_devices names %d files, at most %d can be used", len(files), maxFiles)
	}
	var out []Class
	for _, file := range files {
		c, err := readFile(file)
		if err != nil {
			return nil, fmt.Errorf("read CDI devices from %s: %w", file, err)
		}
		out = append(out, c)
	}
	return out, nil
}

func filesOf(place string) ([]string, error) {
	st, err := os.Stat(place)
	if err != nil {
		return nil, fault.Invalidf("a description of CDI devices cannot be read").WithCause(err).
			WithNext("correct agent.cdi_devices, or leave it out")
	}
	if !st.IsDir() {
		return []string{place}, nil
	}
	entries, err := os.ReadDir(place)
	if err != nil {
		return nil, fmt.Errorf("read CDI devices: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".toml") {
			out = append(out, filepath.Join(place, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fault.Invalidf("no file in %s ends in .toml", place).WithNext("correct agent.cdi_devices, or leave it out")
	}
	return out, nil
}

func readFile(file string) (Class, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Class{}, fault.Invalidf("it cannot be read").WithCause(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Class{}, err
	}
	if len(b) > maxFile {
		return Class{}, fault.Invalidf("it is larger than %d bytes", maxFile)
	}
	return Parse(b)
}

// Parse reads the description of a class from TOML. What it does not know is an error.
func Parse(text []byte) (Class, error) {
	var c Class
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&c); err != nil {
		var unknown *toml.StrictMissingError
		if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
			row, _ := unknown.Errors[0].Position()
			return Class{}, fault.Invalidf("line %d: there is no key %q", row, strings.Join(unknown.Errors[0].Key(), "."))
		}
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			row, column := bad.Position()
			return Class{}, fault.Invalidf("line %d, column %d: %s", row, column, strings.TrimPrefix(bad.Error(), "toml: "))
		}
		return Class{}, fault.Invalidf("it is no TOML").WithCause(err)
	}
	if _, err := c.build(); err != nil {
		return Class{}, err
	}
	return c, nil
}

// class is a Class, read and checked.
type class struct {
	slot            cluster.SlotName
	family          string // of the slot: the names of metrics begin with it
	count           cluster.SlotKind
	kind            string
	dirs            []string
	names           *regexp.Regexp
	capacity        cluster.Amount
	sysfs           pattern
	model           string
	modelFile       pattern
	memory          int64
	hca             bool
	ignored         []string
	env             map[string]string
	metrics, health command
	healthFile      pattern
	healthy         *regexp.Regexp
}

// command is a Command, read and checked; without arguments there is none.
type command struct {
	args           []string
	every, timeout time.Duration
}

var slotName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}(\.[a-z0-9][a-z0-9-]{0,31})+$`)

// build checks the whole description. It is pure.
func (c Class) build() (class, error) {
	out := class{slot: c.Slot, count: c.Count, kind: c.Kind, dirs: c.SpecDirs, model: c.Model, hca: c.HCA, ignored: c.IgnoreHooks,
		env: maps.Clone(c.Env)}
	if !slotName.MatchString(string(c.Slot)) {
		return out, fault.Invalidf("slot = %q is not of the form family.name", c.Slot).WithNext(`write slot = "gaudi2.device"`)
	}
	out.family, _, _ = strings.Cut(string(c.Slot), ".")
	if out.family == "cuda" || out.family == "rocm" {
		return out, fault.Invalidf("slot = %q belongs to a driver of its own", c.Slot).WithNext("choose another family than cuda and rocm")
	}
	switch c.Count {
	case "":
		out.count = cluster.SlotCount
	case cluster.SlotCount, cluster.SlotUnique:
	default:
		return out, fault.Invalidf("count = %q is neither count nor unique", c.Count)
	}
	if vendor, name := parser.ParseQualifier(c.Kind); parser.ValidateVendorName(vendor) != nil || parser.ValidateClassName(name) != nil {
		return out, fault.Invalidf("kind = %q is not of the form vendor.com/class", c.Kind)
	}
	if len(out.dirs) == 0 {
		out.dirs = defaultDirs
	}
	for _, dir := range out.dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return out, fault.Invalidf("spec_dirs: %q is no absolute path", dir)
		}
	}
	var err error
	expression := c.Names
	if expression == "" {
		expression = ".*"
	}
	if out.names, err = regexp.Compile("^(?:" + expression + ")$"); err != nil {
		return out, fault.Invalidf("names = %q is no regular expression", c.Names).WithCause(err)
	}
	if c.Capacity < 0 || c.Capacity > maxCapacity || out.count == cluster.SlotUnique && c.Capacity > 1 {
		return out, fault.Invalidf("capacity = %d is not between 1 and %d, or not 1 of a slot that is counted as unique", c.Capacity, maxCapacity)
	}
	out.capacity = cluster.Whole(int64(max(1, c.Capacity)))
	if c.Memory != "" {
		if out.memory, err = cluster.ParseBytes(c.Memory); err != nil {
			return out, fmt.Errorf("memory: %w", err)
		}
	}
	if c.Model != "" && c.ModelFile != "" {
		return out, fault.Invalidf("model and model_file are both given").WithNext("leave one of them out")
	}
	for _, f := range []struct {
		key, text string
		to        *pattern
	}{{"sysfs", c.Sysfs, &out.sysfs}, {"model_file", c.ModelFile, &out.modelFile}, {"health.file", c.Health.File, &out.healthFile}} {
		if *f.to, err = parsePattern(f.text, out.names.NumSubexp()); err != nil {
			return out, fmt.Errorf("%s: %w", f.key, err)
		}
	}
	if c.HCA != strings.HasSuffix(string(c.Slot), suffixHCA) {
		return out, fault.Invalidf("hca = %v does not go with slot = %q", c.HCA, c.Slot).
			WithNext("slots of network adapters, and no others, end in %s: rdma%s", suffixHCA, suffixHCA)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		if !envName.MatchString(name) || strings.ContainsRune(c.Env[name], 0) {
			return out, fault.Invalidf("env: variable %q cannot be set", name)
		}
	}
	if out.metrics, err = c.Metrics.build(); err != nil {
		return out, fmt.Errorf("metrics: %w", err)
	}
	if out.health, err = (Command{c.Health.Command, c.Health.Every, c.Health.Timeout}).build(); err != nil {
		return out, fmt.Errorf("health: %w", err)
	}
	if (c.Health.File == "") != (c.Health.Healthy == "") {
		return out, fault.Invalidf("health.file and health.healthy go together").
			WithNext(`write healthy = "ok", what the file says of a working device`)
	}
	if out.healthy, err = regexp.Compile(c.Health.Healthy); err != nil {
		return out, fault.Invalidf("health.healthy = %q is no regular expression", c.Health.Healthy).WithCause(err)
	}
	return out, nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (c Command) build() (command, error) {
	out := command{args: c.Command, every: defaultEvery, timeout: defaultTimeout}
	if len(c.Command) == 0 {
		if c.Every != "" || c.Timeout != "" {
			return out, fault.Invalidf("there is no command to run").WithNext(`write command = ["/usr/bin/program", "argument"]`)
		}
		return out, nil
	}
	if !filepath.IsAbs(c.Command[0]) {
		return out, fault.Invalidf("the program %q is no absolute path", c.Command[0])
	}
	var err error
	if c.Every != "" {
		if out.every, err = time.ParseDuration(c.Every); err != nil || out.every < minEvery {
			return out, fault.Invalidf("every = %q is not a duration of %s or more", c.Every, minEvery)
		}
	}
	if c.Timeout != "" {
		if out.timeout, err = time.ParseDuration(c.Timeout); err != nil || out.timeout <= 0 || out.timeout > maxTimeout {
			return out, fault.Invalidf("timeout = %q is not a duration of up to %s", c.Timeout, maxTimeout)
		}
	}
	return out, nil
}

// pattern is a path below /sys, without "/sys/", in which {name} stands for a device's name and {1} for what the first group of the
// names' expression matched. "" is none.
type pattern string

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

func parsePattern(text string, groups int) (pattern, error) {
	if text == "" {
		return "", nil
	}
	below, ok := strings.CutPrefix(text, "/sys/")
	if !ok || below == "" || path.Clean("/"+below) != "/"+below || strings.ContainsRune(text, 0) {
		return "", fault.Invalidf("%q is no path below /sys", text)
	}
	for _, p := range placeholder.FindAllString(below, -1) {
		if p != "{name}" && (len(p) != 3 || p[1] < '1' || p[1] > '9' || int(p[1]-'0') > groups) {
			return "", fault.Invalidf("%q: %s is neither {name} nor a group of names, such as {1}", text, p)
		}
	}
	return pattern(below), nil
}

// of returns the path for one device. Names of devices have no slash and begin with a letter or digit; a group may match ".." all the same,
// so the result is checked.
func (p pattern) of(name string, groups []string) (string, bool) {
	out := placeholder.ReplaceAllStringFunc(string(p), func(at string) string {
		if at == "{name}" {
			return name
		}
		return groups[at[1]-'0']
	})
	return out, out != "" && path.Clean("/"+out) == "/"+out
}
