package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
)

// maxHold is the longest that creating a session holds its request.
const maxHold = 6 * time.Hour

// Berth has one priority: clients that know a second one, of jobs, mean the same by it.
const (
	priority    = "priority|job_priority|jobPriority"
	preemptible = "is_preemptible|isPreemptible|preemptible"
)

// ofRoles are the members of a role; startup_command has words of its own.
const ofRoles = "name|count|image|architecture|resources|resource_opts|resourceOpts|environ|bootstrap_script|bootstrapScript|" +
	"startup_command|startupCommand"

// createRequest decodes the body of a create; need reads what a session cannot do without.
func createRequest(p *params.Set, need func(name string) string) request.Session {
	cfg := p.Object("config")
	r := request.Session{
		Name:             need("name|clientSessionToken|session_name"),
		Image:            need("image|lang"),
		Architecture:     p.Text("architecture|arch", ""),
		Type:             cluster.SessionType(p.Text("type|sessionType|session_type", "")),
		Project:          p.Text("group|groupName|group_name", ""),
		Domain:           p.Text("domain|domainName|domain_name", ""),
		Tag:              p.Optional("tag"),
		NoReuse:          !p.Flag("reuseIfExists|reuse", true),
		StartupCommand:   p.Text("startupCommand|startup_command", ""),
		BootstrapScript:  p.Optional("bootstrap_script|bootstrapScript"),
		OwnerAccessKey:   owner(p),
		StartsAt:         p.Text("starts_at|startsAt", ""),
		ClusterSize:      p.Number("cluster_size|clusterSize", cfg.Number("cluster_size|clusterSize", 1, 1, 10_000), 1, 10_000),
		ClusterMode:      p.Text("cluster_mode|clusterMode", ""),
		Dependencies:     p.List("dependencies|dependsOn|depends"),
		CallbackURL:      p.Text("callback_url|callbackUrl|callbackURL", ""),
		BatchTimeout:     p.Span("batch_timeout|batchTimeout"),
		RerunOnAgentLoss: p.Flag("rerun_on_agent_loss|rerunOnAgentLoss", false),
		Retries:          p.Number("retries", 0, 0, request.MaxRetries),
		Lease:            time.Duration(p.Number("lease_seconds|leaseSeconds", 0, 0, 86400)) * time.Second,
		Environ:          cfg.Texts("environ"),
		Resources:        cfg.Texts("resources"),
		ResourceOpts:     cfg.Texts("resource_opts|resourceOpts"),
		Preset:           cfg.Text("preset|resource_preset|resourcePreset", ""),
		ResourceGroup:    cfg.Text("scaling_group|scalingGroup", ""),
		Agents:           cfg.List("agent_list|agentList|agents"),
		Mounts:           cfg.List("mounts"),
		MountIDs:         cfg.List("mount_ids|mountIds"),
		MountMap:         cfg.Texts("mount_map|mountMap"),
		MountIDMap:       cfg.Texts("mount_id_map|mountIdMap"),
		MountOptions:     mountOptions(cfg),
	}
	for _, o := range p.Objects("roles") {
		o.Only(ofRoles)
		if o.Has("startup_command|startupCommand") {
			o.Fail("startup_command", "is not of a role: the main kernel alone runs one; start programs of other kernels in their bootstrap_script")
		}
		r.Roles = append(r.Roles, request.Role{Name: o.Need("name"), Count: o.Number("count", 1, 0, 10_000), Image: o.Text("image", ""),
			Architecture: o.Text("architecture", ""), Resources: o.Texts("resources"), ResourceOpts: o.Texts("resource_opts|resourceOpts"),
			Environ: o.Texts("environ"), BootstrapScript: o.Optional("bootstrap_script|bootstrapScript")})
	}
	r.FailIfImpossible = p.Flag("fail_if_impossible|failIfImpossible", false)
	if p.Has(priority) {
		r.Priority = new(p.Number(priority, 0, 0, 100))
	}
	if p.Has(preemptible) {
		r.Preemptible = new(p.Flag(preemptible, true))
	}
	for _, text := range cfg.List("preopen_ports|preopenPorts") {
		port := cfg.Within("", map[string]any{"preopen_ports": text})
		r.PreopenPorts = append(r.PreopenPorts, port.Number("preopen_ports", 0, 1024, 65535))
	}
	if r.Resources == nil { // how clients of API 4 said it
		for slot, name := range map[string]string{"cpu": "instanceCores", "mem": "instanceMemory"} {
			if v := cfg.Text(name, ""); v != "" {
				if r.Resources == nil {
					r.Resources = map[string]string{}
				}
				r.Resources[slot] = v
			}
		}
	}
	return r
}

// mountOptions decodes what is said of single mounts. A type other than bind is unknown.
func mountOptions(cfg *params.Set) map[string]folder.MountOption {
	all := cfg.Object("mount_options|mountOptions")
	if len(all.Members()) == 0 {
		return nil
	}
	out := make(map[string]folder.MountOption, len(all.Members()))
	for source, v := range all.Members() {
		option, ok := v.(map[string]any)
		if !ok && v != nil {
			all.Fail(source, "must be an object")
		}
		o := all.Within(source, option)
		if kind := o.Text("type", "bind"); kind != "bind" {
			o.Fail("type", "must be bind")
		}
		perm := o.Text("permission|perm", "")
		if perm == "readonly" || perm == "read-only" || perm == "read-write" {
			perm = map[string]string{"readonly": "ro", "read-only": "ro", "read-write": "rw"}[perm]
		}
		out[source] = folder.MountOption{Permission: cluster.MountPermission(perm), Subpath: o.Text("subpath", ""),
			Target: o.Text("mount_destination|mountDestination|target", "")}
	}
	return out
}

// hold says how long an answer waits for a session.
type hold struct {
	enqueueOnly bool
	most        time.Duration
	dry         bool
}

func readHold(p *params.Set) hold {
	return hold{
		enqueueOnly: p.Flag("enqueueOnly|enqueue_only", false),
		most:        time.Duration(p.Number("maxWaitSeconds|max_wait_seconds", 0, 0, int(maxHold/time.Second))) * time.Second,
		dry:         p.Flag("dry_run|dryRun", false),
	}
}

func (a *API) createSession(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	req, h := createRequest(p, p.Need), readHold(p)
	if err := p.Err(); err != nil {
		return err
	}
	return a.start(c, req, h)
}

// start answers when the session runs, a batch session when its job has ended, or at once when it was only enqueued. A client that
// leaves early leaves the session as it is.
func (a *API) start(c *call, req request.Session, h hold) error {
	if h.dry {
		return a.dryRun(c, req)
	}
	// The session is made whole or not at all, whether or not its client stays.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), 30*time.Second)
	made, err := a.sessions.Create(ctx, c.actor, req)
	cancel()
	if err != nil {
		return err
	}
	ports := servicePorts(made.ServicePorts)
	reply := api.CreatedSession{
		ID: string(made.ID), Name: made.Name, Status: string(made.Status), Created: made.Created, ServicePorts: ports, OldServicePorts: ports,
	}
	until := session.UntilStarted
	if req.Type == cluster.Batch {
		until = session.UntilStopped
	}
	if !h.enqueueOnly && (made.Status != cluster.Running || until != session.UntilStarted) {
		wait := maxHold
		if h.most > 0 {
			wait = h.most
		}
		st, timedOut, err := a.sessions.Wait(c.ctx(), c.actor, made.ID, until, wait)
		switch {
		case err != nil && c.ctx().Err() != nil:
			return context.Canceled
		case err != nil:
			return err
		case timedOut && st.Status != cluster.Running:
			reply.Status = api.StatusTimeout
		default:
			reply.Status = string(st.Status)
			reply.ServicePorts = servicePorts(st.ServicePorts)
			reply.OldServicePorts = reply.ServicePorts
		}
		reply.StatusInfo = st.StatusInfo
	}
	return c.json(http.StatusCreated, reply)
}

// servicePorts is never null.
func servicePorts(ports []session.ServicePort) []api.ServicePort {
	out := make([]api.ServicePort, len(ports))
	for i, p := range ports {
		out[i] = api.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Ports: p.Ports, URLTemplate: p.URLTemplate,
			AllowedArguments: p.AllowedArguments, AllowedEnvs: p.AllowedEnvs,
		}
	}
	return out
}

// waitSession is our extension GET /session/{s}/wait?until=started|ended&timeout=SECONDS.
func (a *API) waitSession(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	until, timeout := p.Text("until", "started"), p.Number("timeout", 30, 1, int(maxHold/time.Second))
	if until != "started" && until != "ended" {
		p.Fail("until", "must be started or ended")
	}
	who := owner(p)
	if err := p.Err(); err != nil {
		return err
	}
	s, err := a.sessions.Find(c.ctx(), c.actor, c.r.PathValue("s"), who)
	if err != nil {
		return err
	}
	u := session.UntilStarted
	if until == "ended" {
		u = session.UntilEnded
	}
	st, timedOut, err := a.sessions.Wait(c.ctx(), c.actor, s.ID, u, time.Duration(timeout)*time.Second)
	if err != nil {
		if c.ctx().Err() != nil {
			return context.Canceled
		}
		return err
	}
	return c.ok(api.WaitReply{
		ID: string(st.ID), Name: st.Name, Status: string(st.Status), StatusInfo: st.StatusInfo, Result: string(st.Result),
		ExitCode: st.ExitCode, TimedOut: timedOut,
	})
}

var errClientGone = errors.New("the client left")
