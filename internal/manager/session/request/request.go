// Package request reads what the creator of a session asks for: it fills in defaults and checks everything that can be checked
// without the database. It is not the type of the wire: httpapi decodes into it, session calls it and checks the rest.
package request

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Session is a request for a session, as texts where the wire has texts. Zero values mean the wire's defaults.
type Session struct {
	Name           string
	Image          string // reference or alias
	Architecture   string // "" means any that the image has
	Type           cluster.SessionType
	Project        string // name or id; "" means default
	Domain         string // "" means the owner's
	Tag            *string
	NoReuse        bool // refuse instead of returning a live session of that name
	StartupCommand string
	// BootstrapScript nil means the keypair's.
	BootstrapScript *string
	OwnerAccessKey  cluster.AccessKey
	StartsAt        string // ISO time or a delta such as 10m
	ClusterSize     int
	ClusterMode     string
	// Roles are kernels besides those that ClusterSize counts, in their order.
	Roles        []Role
	Dependencies []string // ids or names
	CallbackURL  string
	Priority     *int
	Preemptible  *bool // may end for sessions of higher priority where the group allows it; nil means yes
	// RerunOnAgentLoss lets a batch session start again elsewhere when its agent is lost, although its command may have run.
	RerunOnAgentLoss bool
	// Retries is how often a batch session starts again elsewhere when a device of it breaks.
	Retries      int
	BatchTimeout time.Duration
	// FailIfImpossible refuses a session that no agent could run today; else it waits for one.
	FailIfImpossible bool
	// Lease is how long the session stays when its client does not renew the lease; 0 is for ever.
	Lease        time.Duration
	Environ      map[string]string
	Resources    map[string]string // slot -> amount as written
	ResourceOpts map[string]string // shmem, isolation, network
	// Preset is the name or id of a preset that gives what Resources do not name; "" is none.
	Preset        string
	ResourceGroup string // "" means the first allowed one that could run it
	PreopenPorts  []int
	Agents        []string
	// Mounts and what belongs to them are folders; see folder.MountRequest.
	Mounts       []string
	MountIDs     []string
	MountMap     map[string]string
	MountIDMap   map[string]string
	MountOptions map[string]folder.MountOption
}

const (
	// MaxScript bounds scripts and startup commands in bytes.
	MaxScript = 64 << 10
	// MaxRetries bounds Session.Retries.
	MaxRetries = 10
	// DefaultPriority is that of requests without one.
	DefaultPriority = 10
	// DefaultMaxPriority is the highest that a user may ask for under a policy that names none, so that nobody passes all others
	// unless an administrator said so.
	DefaultMaxPriority = DefaultPriority

	maxEnvironBytes   = 128 << 10
	maxEnvironEntries = 512
	maxClusterSize    = 256
	maxPreopen        = 32
	maxDependencies   = 128
	maxMounts         = 64
	maxMountText      = 4096
)

// Check enforces everything that can be said without looking at the cluster, and fills in defaults.
func (r *Session) Check() error {
	if r.Type == "" {
		r.Type = cluster.Interactive
	}
	if r.ClusterSize == 0 {
		r.ClusterSize = 1
	}
	if r.ClusterMode == "" {
		r.ClusterMode = "single-node"
	}
	if err := cluster.CheckSessionName(r.Name); err != nil {
		return err
	}
	switch r.Type {
	case cluster.Interactive:
		if r.StartsAt != "" {
			return fault.Invalidf("only batch sessions may have a start time (starts_at)")
		}
		if r.BatchTimeout != 0 {
			return fault.Invalidf("only batch sessions may have a batch_timeout")
		}
		if r.Retries != 0 {
			return fault.Invalidf("only batch sessions may have retries").WithNext("leave retries out, or make it a batch session")
		}
	case cluster.Batch:
		if strings.TrimSpace(r.StartupCommand) == "" {
			return fault.Invalidf("a batch session needs a startup command").WithNext("give the command that it runs in startupCommand")
		}
		if r.BatchTimeout < 0 {
			return fault.Invalidf("batch_timeout must not be negative")
		}
	case cluster.Inference, cluster.System:
		return fault.Invalidf("sessions of type %s are made by the cluster itself", r.Type).WithNext("ask for interactive or batch")
	default:
		return fault.Invalidf("%.64q is not a session type", r.Type).WithNext("use interactive or batch")
	}
	if r.ClusterMode != "single-node" && r.ClusterMode != "multi-node" {
		return fault.Invalidf("%.64q is not a cluster mode", r.ClusterMode).WithNext("use single-node or multi-node")
	}
	if r.ClusterSize < 1 || r.ClusterSize > maxClusterSize {
		return fault.Invalidf("a cluster has 1 to %d containers, not %d", maxClusterSize, r.ClusterSize)
	}
	if err := r.checkRoles(); err != nil {
		return err
	}
	if r.Priority != nil && (*r.Priority < 0 || *r.Priority > 100) {
		return fault.Invalidf("priority %d is not between 0 and 100", *r.Priority)
	}
	if err := CheckLease(r.Lease); err != nil {
		return err
	}
	if len(r.StartupCommand) > MaxScript {
		return fault.Invalidf("the startup command has more than %d bytes", MaxScript)
	}
	if r.BootstrapScript != nil && len(*r.BootstrapScript) > MaxScript {
		return fault.Invalidf("the bootstrap script has more than %d bytes", MaxScript)
	}
	if r.Tag != nil && len(*r.Tag) > 64 {
		return fault.Invalidf("the tag has more than 64 bytes")
	}
	if len(r.Dependencies) > maxDependencies {
		return fault.Invalidf("a session may depend on %d others at most", maxDependencies)
	}
	if err := r.checkMounts(); err != nil {
		return err
	}
	if err := checkEnviron(r.Environ); err != nil {
		return err
	}
	if r.CallbackURL != "" {
		if err := callback.CheckAddress(r.CallbackURL); err != nil {
			return fmt.Errorf("read callback_url: %w", err)
		}
	}
	want := 1
	if r.ClusterMode == "multi-node" {
		want = r.Containers()
	}
	if len(r.Agents) != 0 && len(r.Agents) != want {
		return fault.Invalidf("agent_list names %d agents, but this session needs exactly %d", len(r.Agents), want)
	}
	texts := append([]string{r.StartupCommand, r.CallbackURL, r.StartsAt, r.ResourceGroup, r.Image, r.Project, r.Domain, r.Preset},
		r.Dependencies...)
	for _, text := range []*string{r.BootstrapScript, r.Tag} {
		if text != nil {
			texts = append(texts, *text)
		}
	}
	if !slices.ContainsFunc(texts, func(text string) bool { return !isText(text) }) {
		return nil
	}
	return fault.Invalidf("the request holds a text with a NUL character or one that is not UTF-8")
}

// CheckLease bounds the length of a lease; 0 is none.
func CheckLease(length time.Duration) error {
	if length != 0 && (length < 10*time.Second || length > 24*time.Hour) {
		return fault.Invalidf("a lease of %s is not allowed", length).WithNext("choose 10 seconds to 24 hours")
	}
	return nil
}

// checkMounts bounds what is said of folders; what it means is decided by package folder.
func (r *Session) checkMounts() error {
	if n := max(len(r.Mounts)+len(r.MountIDs), len(r.MountMap)+len(r.MountIDMap), len(r.MountOptions)); n > maxMounts {
		return fault.Invalidf("the request names %d folders, %d are allowed", n, maxMounts)
	}
	texts := slices.Concat(r.Mounts, r.MountIDs)
	for _, m := range []map[string]string{r.MountMap, r.MountIDMap} {
		for source, target := range m {
			texts = append(texts, source, target)
		}
	}
	for source, o := range r.MountOptions {
		texts = append(texts, source, o.Subpath, o.Target)
		if o.Permission != "" && !o.Permission.Valid() {
			return fault.Invalidf("%q is no permission of a mount (%s)", o.Permission, source).WithNext("use ro or rw")
		}
	}
	for _, text := range texts {
		if !isText(text) || len(text) > maxMountText {
			return fault.Invalidf("a mount holds a NUL character or more than %d bytes", maxMountText)
		}
	}
	return nil
}

// Folders is what the request says of them, for a session of a project.
func (r *Session) Folders(project cluster.ProjectID) folder.MountRequest {
	return folder.MountRequest{Mounts: r.Mounts, MountIDs: r.MountIDs, MountMap: r.MountMap, MountIDMap: r.MountIDMap, Options: r.MountOptions,
		Project: project, SessionType: r.Type}
}

// NamesFolders reports whether the request names any.
func (r *Session) NamesFolders() bool {
	return len(r.Mounts)+len(r.MountIDs)+len(r.MountMap)+len(r.MountIDMap) > 0
}

func checkEnviron(env map[string]string) error {
	if len(env) > maxEnvironEntries {
		return fault.Invalidf("environ has %d entries, %d are allowed", len(env), maxEnvironEntries)
	}
	total := 0
	for k, v := range env {
		total += len(k) + len(v) + 2
		if k == "" || strings.Contains(k, "=") || !isText(k) || !isText(v) {
			return fault.Invalidf("environment variable %.64q is not allowed", k).
				WithNext("names must not be empty or hold '=' or NUL, values must not hold NUL")
		}
	}
	if total > maxEnvironBytes {
		return fault.Invalidf("environ has %d bytes, %d are allowed", total, maxEnvironBytes)
	}
	return nil
}

// Slots reads the request's resources against the image's bounds; the result is for one kernel. Defaults give what the request leaves
// open.
func (r *Session) Slots(
	i dbgen.Image, kinds map[cluster.SlotName]cluster.SlotKind, d Defaults,
) (want cluster.Slots, opts map[string]string, err error) {
	shmem, err := r.shmem(i, d)
	if err != nil {
		return nil, nil, err
	}
	isolation, err := cluster.ParseIsolation(r.ResourceOpts["isolation"])
	if err != nil {
		return nil, nil, fmt.Errorf("resource option isolation: %w", err)
	}
	host, err := cluster.ParseNetworkMode(r.ResourceOpts["network"])
	if err != nil {
		return nil, nil, fmt.Errorf("resource option network: %w", err)
	}
	want = cluster.Slots{}
	for _, name := range sortedKeys(r.Resources) {
		text := r.Resources[name]
		slot := cluster.SlotName(name)
		if name == "shmem" {
			return nil, nil, fault.Invalidf("shmem is not a resource slot").WithNext("put shmem into resource_opts")
		}
		_, known := kinds[slot]
		known = known || slot == cluster.SlotCPU || slot == cluster.SlotMem
		v, perr := cluster.ParseAmount(cluster.KindOf(slot, kinds), text)
		if perr != nil {
			return nil, nil, fmt.Errorf("resource %.64s: %w", name, perr)
		}
		if !known {
			if v == 0 && perr == nil {
				continue
			}
			return nil, nil, fault.Invalidf("unknown resource slot %.64q", name).
				WithNext("this cluster has: %s", strings.Join(slotNames(kinds), ", "))
		}
		want[slot] = v
	}
	least, most := image.Bounds(i, kinds)
	least[cluster.SlotMem] += cluster.Whole(shmem)
	d.fill(want, image.Recommended(i), least, most)
	for _, slot := range least.Names() {
		if _, said := want[slot]; !said {
			if slot == cluster.SlotMem || least[slot] > 0 {
				want[slot] = least[slot]
			}
			continue
		}
		if want[slot] < least[slot] {
			why := ""
			if slot == cluster.SlotMem {
				why = fmt.Sprintf(" (%s of them shared memory)", cluster.FormatAmount(cluster.SlotMem, cluster.Whole(shmem)))
			}
			return nil, nil, fault.Invalidf("%s is too little %s: image %s needs at least %s%s", cluster.FormatAmount(slot, want[slot]), slot,
				i.Reference, cluster.FormatAmount(slot, least[slot]), why).
				WithNext("ask for %s=%s or more", slot, cluster.FormatAmount(slot, least[slot]))
		}
	}
	for _, slot := range most.Names() {
		if want[slot] > most[slot] {
			return nil, nil, fault.Invalidf("%s is too much %s: image %s may use at most %s", cluster.FormatAmount(slot, want[slot]), slot,
				i.Reference, cluster.FormatAmount(slot, most[slot]))
		}
	}
	if want[cluster.SlotMem] <= cluster.Whole(shmem) {
		return nil, nil, fault.Invalidf("shared memory (%s) must be less than the memory (%s)",
			cluster.FormatAmount(cluster.SlotMem, cluster.Whole(shmem)), cluster.FormatAmount(cluster.SlotMem, want[cluster.SlotMem])).
			WithNext("ask for more mem or less shmem")
	}
	if want[cluster.SlotCPU] <= 0 {
		return nil, nil, fault.Invalidf("a session needs some cpu")
	}
	for slot, v := range want {
		if v == 0 {
			delete(want, slot)
		}
	}
	opts = map[string]string{"shmem": fmt.Sprint(shmem)}
	if isolation != "" {
		opts["isolation"] = string(isolation)
	}
	if host {
		opts["network"] = cluster.NetworkHost
	}
	return want, opts, nil
}

func (r *Session) shmem(i dbgen.Image, d Defaults) (int64, error) {
	for _, name := range sortedKeys(r.ResourceOpts) {
		if name == "shmem" && r.ResourceOpts[name] != "" {
			n, err := cluster.ParseBytes(r.ResourceOpts[name])
			if err != nil {
				return 0, fmt.Errorf("resource option shmem: %w", err)
			}
			return n, nil
		}
	}
	if d.Preset.SharedMemory != nil {
		return *d.Preset.SharedMemory, nil
	}
	if text := i.Labels[image.LabelShmem]; text != "" {
		if n, err := cluster.ParseBytes(text); err == nil {
			return n, nil
		}
	}
	return cluster.DefaultShmem, nil
}

// Preopen checks the ports that the session wants open from its start.
func (r *Session) Preopen(apps map[int]string) ([]int32, error) {
	if len(r.PreopenPorts) > maxPreopen {
		return nil, fault.Invalidf("%d preopen ports are too many, %d are allowed", len(r.PreopenPorts), maxPreopen)
	}
	out := []int32{}
	for _, p := range r.PreopenPorts {
		if p < 1024 || p > 65535 {
			return nil, fault.Invalidf("preopen port %d is not between 1024 and 65535", p)
		}
		if slices.Contains(cluster.ReservedPorts, p) {
			return nil, fault.Invalidf("preopen port %d is reserved", p).WithNext("choose a port other than 2000 to 2003, 2200, 2201 and 7681")
		}
		if slices.Contains(out, int32(p)) {
			return nil, fault.Invalidf("preopen port %d is named twice", p)
		}
		if app, ok := apps[p]; ok {
			return nil, fault.Invalidf("preopen port %d is used by the image's app %s", p, app)
		}
		out = append(out, int32(p))
	}
	return out, nil
}

// StartsAt reads an ISO time or a delta such as 10m from now, the database's clock.
func StartsAt(text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
		"2006-01-02 15:04:05.999999999", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil { // without a zone it is UTC
			return &t, nil
		}
	}
	if d, err := delta(text); err == nil {
		t := now.Add(d)
		return &t, nil
	}
	return nil, fault.Invalidf("starts_at %.64q is neither a time nor a delay", text).
		WithNext("write 2026-01-31T08:00:00+00:00 or a delay such as 10m, 2h or 1d")
}

// delta reads 30, 30s, 10m, 2h, 1d, 1w and sums of them.
func delta(text string) (time.Duration, error) {
	bad := fault.Invalidf("%.64q is not a delay", text)
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}
	var total time.Duration
	rest := strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(text, " ", "")), "+")
	for rest != "" {
		i := 0
		for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
			i++
		}
		var n int64
		if i == 0 || i > 9 {
			return 0, bad
		}
		if _, err := fmt.Sscan(rest[:i], &n); err != nil {
			return 0, bad
		}
		unit := time.Second
		if rest = rest[i:]; rest != "" {
			u, ok := units[rest[0]]
			if !ok {
				return 0, bad
			}
			unit, rest = u, rest[1:]
		}
		total += time.Duration(n) * unit
		if total < 0 || total > 366*24*time.Hour {
			return 0, bad
		}
	}
	if text == "" {
		return 0, bad
	}
	return total, nil
}

// TooBig says which slot no agent could ever give and by how much; nil when one could or none is known yet. Only
// agents of the architecture count.
func TooBig(want cluster.Slots, architecture string, agents []dbgen.AgentShapesRow) error {
	var best string
	var missing cluster.Slots
	least := 0.0
	for _, a := range agents {
		if a.Architecture != architecture || len(a.Capacity) == 0 {
			continue
		}
		short := a.Capacity.Shortfall(want)
		if len(short) == 0 {
			return nil
		}
		// The best agent lacks the smallest share of what is asked for.
		share := 0.0
		for slot, v := range short {
			share += float64(v) / float64(want[slot])
		}
		if missing == nil || share < least {
			best, missing, least = a.ID, short, share
		}
	}
	if missing == nil {
		return nil
	}
	var parts []string
	data := map[string]any{}
	for _, slot := range missing.Names() {
		parts = append(parts, fmt.Sprintf("%s: %s asked for, %s too much", slot, cluster.FormatAmount(slot, want[slot]),
			cluster.FormatAmount(slot, missing[slot])))
		data[string(slot)] = missing[slot].String()
	}
	return fault.Invalidf("no agent could ever run this session: %s for the largest agent %s", strings.Join(parts, ", "), best).
		WithData(map[string]any{"shortfall": data, "agent": best}).WithNext("ask for less, or use a resource group with larger agents")
}

func slotNames(kinds map[cluster.SlotName]cluster.SlotKind) []string {
	out := []string{string(cluster.SlotCPU), string(cluster.SlotMem)}
	for k := range kinds {
		if !slices.Contains(out, string(k)) {
			out = append(out, string(k))
		}
	}
	slices.Sort(out)
	return out
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// isText reports whether a database can hold the text.
func isText(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }
