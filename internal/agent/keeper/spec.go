package keeper

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// build is what is needed to create a kernel, computed from its specification. The mounts of its files are not in it: the
// host returns them when it has written the content.
type build struct {
	content host.Content
	spec    runtime.Spec
}

// input of the computation of a build.
type buildInput struct {
	identity runtime.Identity
	desired  *cluster.DesiredKernel
	record   *ledger.Record
	image    runtime.Image
	passwd   []byte // of the image
	group    []byte
	user     host.Owner
	grant    device.Grant
	folders  []runtime.Mount
	place    network.Place
	ports    assigned
	logLevel string
}

// newBuild is pure: the same specification always gives the same container.
func newBuild(in buildInput) (build, error) {
	s := in.desired.Spec
	uid, gid := in.user.UID, in.user.GID
	chosen, err := alloc.Parse(in.record.Allocation)
	if err != nil {
		return build{}, err
	}
	cores := len(in.grant.CPUSet)
	home, err := homeFiles(s)
	if err != nil {
		return build{}, err
	}
	groups := groupsOf(s, in.grant.Groups)
	in.ports = assignPorts(s, in.record.HostPorts)
	env := environ(in, s, uid, gid, cores, groups)
	shell := "/bin/sh"
	for _, line := range strings.Split(string(in.passwd), "\n") {
		// The shell of root in the image is one that the image has.
		if f := strings.Split(line, ":"); len(f) == 7 && f[0] == "root" && f[6] != "" {
			shell = f[6]
		}
	}
	conf := run.Config{
		Version: run.Version, Token: in.record.Token, KernelID: string(in.identity.Kernel), Dir: host.PrivateDir,
		SessionType: string(s.SessionType),
		Runtime:     run.RuntimeConfig{Type: s.RuntimeType, Path: s.RuntimePath},
		User:        run.User{UID: uid, GID: gid, Groups: groups, Name: host.UserName, Home: host.Home, Shell: shell},
		WorkDir:     host.Home, Env: env, Cores: cores, Memory: in.grant.Memory, Bootstrap: s.BootstrapScript, LogLevel: in.logLevel,
		Apps: in.ports.apps, HostPorts: in.record.HostPorts, AuthorizedKeys: keysOf(s), Confine: true, AwaitNetwork: in.place.Address != "",
	}
	conf.AwaitNetwork = conf.AwaitNetwork && !s.HostNetwork
	conf.Prestart = prewarm(s, in.image.Labels, in.grant.Memory)
	switch {
	case s.RunsJob():
		conf.Batch = &run.BatchCommand{Command: s.StartupCommand, TimeoutMS: s.BatchTimeout.Milliseconds()}
	case s.SessionType == cluster.Batch:
		conf.SessionType = string(cluster.Interactive) // it waits for what the main kernel asks of it
	}
	if s.PeerSecret != "" {
		conf.Peers = &run.PeersConfig{Name: s.Hostname, Secret: s.PeerSecret, Port: in.ports.ssh}
	}
	if err := conf.WithDefaults().Validate(); err != nil {
		return build{}, fault.Invalidf("the session's specification cannot be run").WithCause(err)
	}
	return build{
		content: host.Content{
			UID: uid, GID: gid, Generation: in.identity.Generation, Work: home, Folders: placesOf(in.folders),
			Config: []host.File{
				{Path: "environ.txt", Mode: 0o644, Data: environText(env)},
				{Path: "resource.txt", Mode: 0o644, Data: resourceText(s, chosen, "")},
				{Path: "dotfiles.json", Mode: 0o644, Data: dotfilesJSON(s.Dotfiles)},
			},
			Passwd: host.Passwd(in.passwd, uid, gid, shell),
			Group:  host.Group(in.group, gid, groups),
			Runner: conf,
		},
		spec: runtime.Spec{
			Identity: in.identity, Image: s.Image, Digest: in.image.ID, Hostname: s.Hostname,
			ExtraHosts: hostsOf(s, cmp.Or(in.place.Session, in.place.Address), in.place.Peers),
			Entry:      host.Entry(), Env: variablesOf(in.grant.Env), WorkingDir: "/",
			Mounts:  slices.Clone(in.grant.Mounts),
			Devices: in.grant.Nodes, CDI: in.grant.CDI, Groups: in.grant.Groups,
			CPUSet: in.grant.CPUSet, MemoryMax: in.grant.Memory, ShmSize: s.ShmBytes,
			Ulimits: []runtime.Ulimit{
				{Name: "nofile", Soft: 1048576, Hard: 1048576},
				{Name: "memlock", Soft: -1, Hard: -1},
			},
			StopSignal: "SIGTERM",
			Networks:   in.place.Networks, Resolvers: in.place.Resolvers,
		},
	}, nil
}

const (
	// labelPrewarm of an image says with "false" that interpreters start with the first cell only.
	labelPrewarm = "dev.berth.prewarm"
	// prewarmMemory is the least memory of a kernel whose interpreter starts before anybody asks for it.
	prewarmMemory = 256 << 20
)

// prewarm reports whether the interpreter starts beside the container's own start, so that the first cell does not wait for it. It does in
// interactive sessions, unless the image says otherwise or the kernel has little memory for it.
func prewarm(s *cluster.KernelSpec, labels map[string]string, memory int64) bool {
	return s.SessionType == cluster.Interactive && labels[labelPrewarm] != "false" && (memory == 0 || memory >= prewarmMemory)
}

// variablesOf renders the variables of devices for the container. Engines' hooks that inject devices read them from there, and
// they replace the values that the image sets.
func variablesOf(env map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// hostsOf are the names that the container knows: what the manager gives, its own name where the engine does not know its
// address, and the other kernels of its session. The manager's come before others of the same name.
func hostsOf(s *cluster.KernelSpec, address string, peers []string) []string {
	out := slices.Clone(s.Hosts)
	add := func(name, entry string) {
		if !slices.ContainsFunc(out, func(h string) bool { return strings.HasPrefix(h, name+":") }) {
			out = append(out, entry)
		}
	}
	if address != "" && s.Hostname != "" {
		add(s.Hostname, s.Hostname+":"+address)
	}
	for _, p := range peers {
		name, _, _ := strings.Cut(p, ":")
		add(name, p)
	}
	return out
}

// proxyVariables tell programs where the only way out is.
var proxyVariables = []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}

// appsOf are the apps that the image declares and the ports that the session wants open, each an app named like its number.
func appsOf(s *cluster.KernelSpec) []run.AppPort {
	var out []run.AppPort
	for _, p := range cluster.ParseServicePorts(s.ServicePorts) {
		out = append(out, run.AppPort{Name: p.Name, Protocol: run.AppProtocol(p.Protocol), Ports: p.Ports})
	}
	for _, p := range s.PreopenPorts {
		out = append(out, run.AppPort{Name: strconv.Itoa(p), Protocol: run.AppPreopen, Ports: []int{p}})
	}
	return out
}

// keysOf are the SSH keys of the session's owner. They are also in the home, as .ssh/authorized_keys. The runner gets them
// separately, so that they work even where a folder is mounted over ~/.ssh or the user has damaged that file.
func keysOf(s *cluster.KernelSpec) []string {
	var out []string
	for _, d := range s.Dotfiles {
		if d.Path == ".ssh/authorized_keys" {
			out = append(out, strings.FieldsFunc(d.Data, func(r rune) bool { return r == '\n' || r == '\r' })...)
		}
	}
	return out
}

// userOf is the session's user: what the manager names, else the agent's default.
func userOf(s *cluster.KernelSpec, uid, gid int) (int, int) {
	if s.UID > 0 {
		uid = s.UID
	}
	if s.GID > 0 {
		gid = s.GID
	}
	return uid, gid
}

// groupsOf are the additional groups of the session's user: what the manager gives, and those that own its devices.
func groupsOf(s *cluster.KernelSpec, devices []int) []int {
	out := slices.Clone(s.ExtraGIDs)
	for _, g := range devices {
		if !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// placesOf puts the mounts of folders in the order of their targets.
func placesOf(folders []runtime.Mount) []runtime.Mount {
	mounts := slices.Clone(folders)
	slices.SortStableFunc(mounts, func(a, b runtime.Mount) int { return strings.Compare(a.Target, b.Target) })
	return mounts
}

// environ is the environment of the session's commands: what the manager gives, and what only the agent knows. Variables of
// devices replace whatever anybody else set, because they are the limit of what the session got.
func environ(in buildInput, s *cluster.KernelSpec, uid, gid, cores int, groups []int) map[string]string {
	env := map[string]string{}
	set := func(k, v string) {
		if _, ok := env[k]; !ok {
			env[k] = v
		}
	}
	maps.Copy(env, s.Env)
	set("BACKENDAI_KERNEL_ID", string(in.identity.Kernel))
	set("BACKENDAI_KERNEL_IMAGE", s.Image)
	set("BACKENDAI_SESSION_ID", string(in.identity.Session))
	set("BACKENDAI_SESSION_NAME", s.SessionName)
	set("BACKENDAI_CLUSTER_ROLE", s.ClusterRole)
	set("BACKENDAI_CLUSTER_IDX", strconv.Itoa(s.ClusterIdx))
	set("BACKENDAI_CLUSTER_LOCAL_RANK", strconv.Itoa(s.LocalRank))
	set("BACKENDAI_CLUSTER_HOST", s.Hostname)
	set("BACKENDAI_SERVICE_PORTS", s.ServicePorts)
	var ports []string
	for _, p := range s.PreopenPorts {
		ports = append(ports, strconv.Itoa(p))
	}
	set("BACKENDAI_PREOPEN_PORTS", strings.Join(ports, ","))
	if len(s.Mounts) > 0 {
		var targets []string
		for _, m := range s.Mounts {
			targets = append(targets, m.Target)
		}
		env["BACKENDAI_PERSISTENT_PATHS"] = strings.Join(targets, ":")
	}
	if e := in.desired.Egress; e.Mode == cluster.EgressProxy {
		for _, name := range proxyVariables {
			set(name, "http://"+e.Proxy.String())
		}
		direct := "localhost,127.0.0.1,::1"
		if n := in.desired.Network; n != nil { // kernels of one session need no proxy to reach each other
			for _, m := range n.Members {
				direct += "," + m.Name
			}
			direct += "," + n.Subnet.String()
		}
		set("no_proxy", direct)
		set("NO_PROXY", direct)
	}
	if n := in.desired.Network; n != nil && in.place.Session != "" {
		// Kernels reach each other on one interface and the rest of the world on another. These programs take any, unless they are told.
		for _, name := range []string{"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"} {
			set(name, n.Subnet.String())
		}
		for _, name := range []string{"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"} {
			set(name, network.SessionInterface)
		}
	}
	env["LOCAL_USER_ID"] = strconv.Itoa(uid)
	env["LOCAL_GROUP_ID"] = strconv.Itoa(gid)
	var gids []string
	for _, g := range groups {
		gids = append(gids, strconv.Itoa(g))
	}
	env["ADDITIONAL_GIDS"] = strings.Join(gids, ",")
	for name := range strings.SplitSeq(s.ImageLabels["ai.backend.envs.corecount"], ",") {
		if name = strings.TrimSpace(name); name != "" && cores > 0 {
			set(name, strconv.Itoa(cores))
		}
	}
	in.ports.environ(env)
	maps.Copy(env, in.grant.Env)
	return env
}

// environText renders environ.txt, one K=V a line; values with line breaks cannot be in it.
func environText(env map[string]string) []byte {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if !strings.ContainsAny(env[k], "\r\n") {
			b.WriteString(k + "=" + env[k] + "\n")
		}
	}
	return []byte(b.String())
}

// resourceText renders resource.txt, which hooks inside the container read.
func resourceText(s *cluster.KernelSpec, a alloc.Allocation, container string) []byte {
	var b strings.Builder
	slots, _ := json.Marshal(s.Slots.Wire()) // a map of strings always encodes
	fmt.Fprintf(&b, "SCRATCH_SIZE=0m\nMOUNTS=\nSLOTS=%s\nUNIFIED_DEVICES=[]\n", slots)
	for _, slot := range slices.Sorted(maps.Keys(a)) {
		var shares []string
		for _, id := range slices.Sorted(maps.Keys(a[slot])) {
			shares = append(shares, id+":"+a[slot][id].String())
		}
		name := strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(string(slot)))
		fmt.Fprintf(&b, "%s_SHARES=%s\n", name, strings.Join(shares, ","))
	}
	if container != "" {
		fmt.Fprintf(&b, "CID=%s\n", container)
	}
	return []byte(b.String())
}

func dotfilesJSON(d []cluster.Dotfile) []byte {
	if d == nil {
		d = []cluster.Dotfile{}
	}
	b, _ := json.Marshal(d) // strings always encode
	return b
}

const bashrc = `# Written once by the agent; change it as you like, it is kept across restarts.
[ -z "$PS1" ] && return
PS1='\[\e[32m\]${BACKENDAI_CLUSTER_HOST:-main1}[${BACKENDAI_SESSION_NAME:-session}]\[\e[0m\]:\w\$ '
alias ls='ls --color=auto' ll='ls -l'
`

// homeFiles are the files that a home begins with. The owner's dotfiles replace older
// ones, everything else is written only when absent.
func homeFiles(s *cluster.KernelSpec) ([]host.File, error) {
	files := []host.File{
		{Path: ".bashrc", Mode: 0o644, Data: []byte(bashrc)},
		{Path: ".bash_profile", Mode: 0o644, Data: []byte("[ -f ~/.bashrc ] && . ~/.bashrc\n")},
	}
	for _, d := range s.Dotfiles {
		f, err := host.Dotfile(d)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if s.BootstrapScript != "" {
		files = append(files, host.File{Path: "bootstrap.sh", Mode: 0o755, Data: []byte(s.BootstrapScript), Replace: true})
	}
	return files, nil
}
