package httpapi

import (
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/manager/session"
)

// maxLogReply bounds a log that is answered inside JSON; follow or plain text has no bound.
const maxLogReply = 16 << 20

func (a *API) sessionRoutes() {
	on := func(who access, h handler, method, path string) { a.handle(who, h, withKernel(method, path)...) }
	a.handle(
		unfrozen, a.waiting(a.createSession), "POST /session", "POST /session/_/create", "POST /kernel", "POST /kernel/_/create",
		"POST /kernel/create",
	)
	on(signedOnly, a.matchSessions, "GET", "/_/match")
	on(signedOnly, a.waiting(a.taskLog), "GET", "/_/logs")
	on(signedOnly, a.sessionInfo, "GET", "/{s}")
	on(signedOnly, a.waiting(a.restartSession), "PATCH", "/{s}")
	on(signedOnly, a.destroySession, "DELETE", "/{s}")
	on(signedOnly, a.execute, "POST", "/{s}")
	on(unfrozen, a.renameSession, "POST", "/{s}/rename")
	on(signedOnly, a.renewLease, "PUT", "/{s}/lease")
	on(signedOnly, a.interrupt, "POST", "/{s}/interrupt")
	on(signedOnly, a.complete, "POST", "/{s}/complete")
	on(signedOnly, a.waiting(a.sessionLogs), "GET", "/{s}/logs")
	on(signedOnly, a.waiting(a.upload), "POST", "/{s}/upload")
	on(signedOnly, a.waiting(a.download), "POST", "/{s}/download")
	on(signedOnly, a.waiting(a.download), "GET", "/{s}/download")
	on(signedOnly, a.waiting(a.downloadSingle), "POST", "/{s}/download_single")
	on(signedOnly, a.waiting(a.downloadSingle), "GET", "/{s}/download_single")
	on(signedOnly, a.files, "GET", "/{s}/files")
	on(unfrozen, a.commitSession, "POST", "/{s}/commit")
	on(signedOnly, a.commitStatus, "GET", "/{s}/commit")
	on(signedOnly, a.sessionWith(func(c *call, s *session.Session) error { return c.ok(api.Empty{}) }), "GET", "/{s}/abusing-report")
	on(signedOnly, a.sessionWith(directAccess), "GET", "/{s}/direct-access-info")
	on(signedOnly, a.statusHistory, "GET", "/{s}/status-history")
	on(signedOnly, a.dependencyGraph, "GET", "/{s}/dependency-graph")
	on(signedOnly, a.waiting(a.waitSession), "GET", "/{s}/wait")
	on(signedOnly, a.explainSession, "GET", "/{s}/explain")
}

// refOwner reads what every route of one session has: its name or id and whom an administrator acts for.
func (c *call) refOwner() (ref string, who cluster.AccessKey, p *params.Set, err error) {
	p, err = c.params()
	if err != nil {
		return "", "", nil, err
	}
	return c.r.PathValue("s"), owner(p), p, p.Err()
}

// sessionWith finds the session of the path first.
func (a *API) sessionWith(then func(*call, *session.Session) error) handler {
	return func(c *call) error {
		ref, who, _, err := c.refOwner()
		if err != nil {
			return err
		}
		s, err := a.sessions.Find(c.ctx(), c.actor, ref, who)
		if err != nil {
			return err
		}
		return then(c, s)
	}
}

func directAccess(c *call, s *session.Session) error {
	if s.Type != cluster.System {
		return c.ok(api.Empty{})
	}
	return c.ok(api.DirectAccess{Role: "SYSTEM", SessionType: strings.ToUpper(string(s.Type)), SSHDPorts: []int{}})
}

func (a *API) matchSessions(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	prefix := p.Need("id")
	if err := p.Err(); err != nil {
		return err
	}
	found, err := a.sessions.Match(c.ctx(), c.actor, prefix)
	if err != nil {
		return err
	}
	matches := make([]api.SessionMatch, len(found))
	for i, s := range found {
		matches[i] = api.SessionMatch{ID: string(s.ID), Name: s.Name, Status: string(s.Status)}
	}
	return c.ok(api.SessionMatches{Matches: matches})
}

func (a *API) sessionInfo(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	s, err := a.sessions.Find(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	checks, err := a.idleChecksOf(c, s)
	if err != nil {
		return err
	}
	containerID, lastStat := "", map[string]any{}
	var exitCode *int
	if k := s.MainKernel(); k != nil {
		containerID, exitCode = k.ContainerID, k.ExitCode
		if k.LastStat != nil {
			lastStat = k.LastStat
		}
	}
	kernels := make([]api.SessionKernel, len(s.Kernels))
	for i, k := range s.Kernels {
		kernels[i] = api.SessionKernel{ID: string(k.ID), Role: k.ClusterRole, Idx: k.ClusterIdx, Hostname: k.ClusterHostname,
			Status: string(k.Status), StatusInfo: k.StatusInfo, ExitCode: k.ExitCode, Image: k.Image,
			Requested: api.TextOf(k.RequestedSlots.Wire())}
	}
	return c.ok(api.SessionInfo{
		Kernels: kernels,
		ID:      string(s.ID), Name: s.Name, Type: string(s.Type), Priority: s.Priority, AgentIDs: texts(s.AgentIDs),
		Domain: s.Domain, GroupID: string(s.ProjectID), GroupName: s.ProjectName, UserID: string(s.UserID), UserEmail: s.UserEmail,
		Lang: s.Image, Image: s.Image, Architecture: s.Architecture, Registry: s.Registry, Tag: s.Tag,
		ContainerID:    &containerID,
		Occupied:       api.TextOf(s.OccupyingSlots.Wire()),
		Occupying:      api.TextOf(s.OccupyingSlots.Wire()),
		Requested:      api.TextOf(s.RequestedSlots.Wire()),
		OccupiedShares: api.TextOf(api.Empty{}),
		Environ:        api.TextOf(orEmpty(s.Environ)),
		ResourceOpts:   api.TextOf(orEmpty(s.ResourceOpts)),
		Status:         string(s.Status),
		StatusInfo:     s.StatusInfo,
		StatusData:     api.BareOf(s.StatusData),
		Result:         string(s.Result),
		ExitCode:       exitCode,
		AgeMillis:      float64(s.Age(a.now()).Milliseconds()),
		CreatedAt:      isoTime(s.CreatedAt),
		TerminatedAt:   isoTimeOrNil(s.EndedAt),
		ResourceGroup:  s.ResourceGroup, ClusterMode: string(s.ClusterMode), ClusterSize: s.ClusterSize,
		NumQueries: s.NumQueries,
		LastStat:   api.BareOf(lastStat),
		MountNames: mountNames(s.Mounts),
		Mounts:     sessionMounts(s.Mounts),
		IdleChecks: api.BareOf(checks),
	})
}

func orEmpty[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

func (a *API) restartSession(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	id, err := a.sessions.Restart(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	// Clients go on using the session at once, so the answer waits until it runs again.
	if _, _, err := a.sessions.Wait(c.ctx(), c.actor, id, session.UntilStarted, restartPatience); err != nil {
		return err
	}
	return c.nothing()
}

// destroyWait is how long the end of a session holds its request, unless the client says otherwise. Scripts delete folders in their
// next line, which needs the containers to be gone.
const destroyWait = 10 * time.Second

// destroySession answers when the session has ended and its containers are gone, or what the state is after the wait. The parameter
// wait, an extension, is the longest wait in seconds.
func (a *API) destroySession(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	o := session.DestroyOptions{Owner: who, Forced: p.Flag("forced|force", false), Recursive: p.Flag("recursive", false)}
	wait := p.Number("wait", int(a.destroyWait/time.Second), 0, int(a.destroyWait/time.Second))
	if err := p.Err(); err != nil {
		return err
	}
	done, err := a.sessions.Destroy(c.ctx(), c.actor, ref, o)
	if err != nil {
		return err
	}
	if wait > 0 {
		if err := a.awaitEnds(c, done, time.Duration(wait)*time.Second); err != nil {
			return err
		}
	}
	stats := make([]api.SessionStats, len(done))
	for i, d := range done {
		st := api.SessionStats{}
		for k, v := range d.Stats {
			st[k] = v
		}
		if st["status"] = strings.ToLower(string(d.Status)); d.Status == cluster.Error {
			st["status"] = "terminated" // the wire destroys failed sessions, too
		}
		if o.Recursive {
			st["session_id"], st["session_name"] = d.ID, d.Name
		}
		stats[i] = st
	}
	if o.Recursive {
		return c.ok(stats)
	}
	if len(stats) == 0 {
		return c.ok(api.DestroyedSession{Stats: api.SessionStats{}})
	}
	return c.ok(api.DestroyedSession{Stats: stats[0]})
}

// awaitEnds waits until sessions have ended and agents hold nothing of them, all within one time, and notes their new statuses. One
// whose containers are still being removed counts as TERMINATING. What was asked for is done: whoever has no place left for requests
// that wait, and whoever waits while the manager stops, is told how far it is.
func (a *API) awaitEnds(c *call, list []session.Destroyed, wait time.Duration) error {
	release, err := a.hold(c, throttle.Wait)
	if err != nil {
		return nil
	}
	defer release()
	deadline := a.now().Add(wait)
	for i := range list {
		left := max(deadline.Sub(a.now()), time.Millisecond)
		st, timedOut, err := a.sessions.Wait(c.ctx(), c.actor, list[i].ID, session.UntilRemoved, left)
		switch {
		case err != nil && c.ctx().Err() != nil:
			return nil
		case fault.Is(err, fault.NotFound): // deleted meanwhile, or of somebody whom the caller may not see
		case err != nil:
			return err
		case timedOut:
			list[i].Status = cluster.Terminating
		default:
			list[i].Status = st.Status
		}
	}
	return nil
}

func (a *API) renameSession(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	name := p.Need("name|session_name|clientSessionToken")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.sessions.Rename(c.ctx(), c.actor, ref, who, name); err != nil {
		return err
	}
	return c.nothing()
}

// renewLease is our extension PUT /session/{s}/lease: the client that holds the session is still there, or with 0 leaves it.
func (a *API) renewLease(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	seconds := p.Number("seconds", 0, 0, 86400)
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.sessions.RenewLease(c.ctx(), c.actor, ref, who, time.Duration(seconds)*time.Second); err != nil {
		return err
	}
	return c.nothing()
}

// sessionLogs answers the log inside JSON, or as a plain stream to those who accept text/plain or ask to follow.
func (a *API) sessionLogs(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	kernel, follow := p.Text("kernel_id|kernelId", ""), p.Flag("follow", false)
	from := p.Number("from", 0, 0, math.MaxInt) // our extension: so many bytes are left out
	if err := p.Err(); err != nil {
		return err
	}
	log, err := a.sessions.Logs(c.ctx(), c.actor, ref, who, session.LogOptions{Kernel: kernel, Follow: follow, From: int64(from)})
	if err != nil {
		return err
	}
	defer log.Close()
	if follow || acceptsPlain(c.r) {
		return c.stream("text/plain; charset=utf-8", log)
	}
	text, err := io.ReadAll(io.LimitReader(log, maxLogReply))
	if err != nil {
		return fmt.Errorf("read the log of session %s: %w", ref, err)
	}
	return c.ok(api.LogsReply{Result: api.LogsText{Logs: strings.ToValidUTF8(string(text), "\uFFFD")}})
}

func acceptsPlain(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if t, _, err := mime.ParseMediaType(part); err == nil && t == "text/plain" {
			return true
		}
	}
	return false
}

// stream copies src to the client as it comes. Once the reply has begun a failure can only break it off.
func (c *call) stream(contentType string, src io.Reader) error {
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return nil
	}
	c.w.Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := c.w.Write(buf[:n]); werr != nil {
				return errClientGone
			}
			c.w.Flush()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			// Also when this manager stops: a reply that ended well would look complete to the client.
			c.w.note = "broke off: " + err.Error()
			panic(http.ErrAbortHandler)
		}
	}
}

// taskLog is the log of a batch session by the id of its kernel, as plain text.
func (a *API) taskLog(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	ref, who := p.Need("session_name|taskId|task_id|sessionName|kernel_id"), owner(p)
	if err := p.Err(); err != nil {
		return err
	}
	kernel := ""
	if id, ok := cluster.CanonicalUUID(ref); ok {
		page, err := a.sessions.ListKernels(c.ctx(), c.actor, session.KernelFilter{Kernel: cluster.KernelID(id)})
		if err != nil {
			return err
		}
		if len(page.Items) == 1 {
			kernel, ref = string(page.Items[0].ID), string(page.Items[0].SessionID)
		}
	}
	log, err := a.sessions.Logs(c.ctx(), c.actor, ref, who, session.LogOptions{Kernel: kernel})
	if err != nil {
		return err
	}
	defer log.Close()
	return c.stream("text/plain; charset=utf-8", log)
}

func (a *API) commitSession(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	filename := p.Text("filename|fname", "")
	if err := p.Err(); err != nil {
		return err
	}
	task, err := a.sessions.Commit(c.ctx(), c.actor, ref, who, filename)
	if err != nil {
		return err
	}
	t, err := a.operations.Task(c.ctx(), c.actor, task)
	if err != nil {
		return err
	}
	return c.json(http.StatusCreated, api.CommitStarted{TaskStarted: api.TaskStarted{TaskID: t.ID}, Status: t.Status, Subject: t.Subject})
}

func (a *API) commitStatus(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	status, kernel, err := a.sessions.CommitStatus(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	return c.ok(api.CommitStatus{Status: status, Kernel: string(kernel)})
}

// statusHistory answers under "result" with lower-case keys, which is what the command line reads, beside it under the names of the
// statuses as newer managers do, and the whole history under "moves".
func (a *API) statusHistory(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	s, moves, err := a.sessions.History(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	result := map[string]*string{"preparing": nil, "terminated": nil, "pending": new(isoTime(s.CreatedAt))}
	reached := map[string]string{string(cluster.Pending): isoTime(s.CreatedAt)}
	list := make([]api.SessionMove, 0, len(moves))
	for _, m := range moves {
		if m.Kernel == "" && m.To != "" {
			key := strings.ToLower(string(m.To))
			if result[key] == nil {
				result[key] = new(isoTime(m.At))
			}
			if _, ok := reached[string(m.To)]; !ok {
				reached[string(m.To)] = isoTime(m.At)
			}
		}
		list = append(list, api.SessionMove{
			Seq: m.Seq, Kernel: string(m.Kernel), Event: string(m.Event), From: string(m.From), To: string(m.To),
			Reason: string(m.Reason), Detail: m.Detail, ExitCode: m.ExitCode, At: isoTime(m.At),
		})
	}
	if result["preparing"] == nil { // a session that was created in one step
		for _, key := range []string{"pulling", "prepared", "creating", "scheduled", "running"} {
			if v, ok := result[key]; ok {
				result["preparing"] = v
				break
			}
		}
	}
	for _, end := range []string{"cancelled", "error"} {
		if v, ok := result[end]; ok && result["terminated"] == nil {
			result["terminated"] = v
		}
	}
	return c.ok(api.StatusHistory{Result: result, Moves: list, Reached: reached})
}

func (a *API) dependencyGraph(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	n, err := a.sessions.DependencyGraph(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	return c.ok(graphNode(n))
}

func graphNode(n *session.DependencyNode) api.DependencyNode {
	needs := make([]api.DependencyNode, 0, len(n.DependsOn))
	for _, d := range n.DependsOn {
		needs = append(needs, graphNode(d))
	}
	return api.DependencyNode{
		ID: string(n.ID), Name: n.Name, Status: "KernelStatus." + string(n.Status),
		StatusChanged: n.StatusChanged.UTC().Format("2006-01-02 15:04:05.000000+00:00"), DependsOn: needs,
	}
}
