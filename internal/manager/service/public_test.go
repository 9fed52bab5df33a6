package service_test

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/service"
)

// public are the methods of Service that do not take an actor, and why.
var public = map[string]string{
	"Run":                "serves; not a use case",
	"Nodes":              "the agents' side; certificates decide",
	"Authenticate":       "makes the actor",
	"Authorize":          "makes the actor from a password",
	"Announcement":       "is for everybody",
	"Frozen":             "is asked before the actor is known",
	"ResourceSlots":      "is for everybody",
	"Findings":           "is for the machine's own administrator, who has the state directory",
	"PruneEvents":        "is for the leader",
	"ResetAdminPassword": "is for the machine's own administrator, who has the state directory",
}

// own are the methods that answer any known actor about itself or about what is everybody's;
// for them the anonymous actor is what must be refused.
var own = []string{"Roles", "UpdatePassword", "UpdateFullName", "SSHKeypair", "GenerateSSHKeypair", "SetSSHKeypair", "MatchSessions", "ListSessions",
	"SessionsByID", "ListKernels", "Events", "ListImages", "GetImage", "AllowedResourceGroups", "ListResourceGroups", "Presets", "ListKeypairs",
	"GetKeypairPolicy", "ListKeypairPolicies", "ListUsers", "ListDomains", "ListProjects", "BootstrapScript", "SetBootstrapScript", "ManagerStatus", "IdleReport", "IdleChecks"}

// Every exported method refuses a stranger: with Denied or NotFound about what belongs to others, and an
// unknown actor with Denied always.
func TestEveryMethodRefusesStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	session := w.running("secret", "a1")
	kernel := w.session(session).MainKernel().ID
	task := "00000000-0000-4000-8000-0000000000ff"
	w.exec(`INSERT INTO background_tasks (id, kind, owner) VALUES ($1, 'x', $2)`, task, string(w.admin.UserID))
	stranger := w.stranger("mallory")

	// Arguments that name what the stranger has no business with.
	words := map[reflect.Type]any{
		reflect.TypeFor[cluster.SessionID]():      session,
		reflect.TypeFor[[]cluster.SessionID]():    []cluster.SessionID{session},
		reflect.TypeFor[cluster.KernelID]():       kernel,
		reflect.TypeFor[cluster.AgentID]():        cluster.AgentID("a1"),
		reflect.TypeFor[[]cluster.AgentID]():      []cluster.AgentID{"a1"},
		reflect.TypeFor[cluster.AccessKey]():      w.admin.AccessKey,
		reflect.TypeFor[service.CreateSession]():  service.CreateSession{Name: "mine", Image: "python", OwnerAccessKey: w.admin.AccessKey},
		reflect.TypeFor[service.DestroyOptions](): service.DestroyOptions{Forced: true, Owner: w.admin.AccessKey},
		reflect.TypeFor[service.EventFilter]():    service.EventFilter{Session: string(session), FromNow: true},
		reflect.TypeFor[service.DotfileScope]():   service.DotfileScope{Owner: w.admin.AccessKey},
		reflect.TypeFor[cluster.Dotfile]():        cluster.Dotfile{Path: ".x", Perm: "644"},
		reflect.TypeFor[time.Duration]():          time.Millisecond,
	}
	strings := map[string]string{"GetUser": w.admin.Email, "GetProject": string(w.admin.Projects[0]), "GetDomain": "default", "Task": task, "TaskEvents": task,
		"GetResourceGroup": "default", "CheckPresets": string(w.admin.Projects[0]), "SetManagerStatus": "frozen"}

	call := func(m reflect.Method, actor service.Actor) []reflect.Value {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		t.Cleanup(cancel)
		in := []reflect.Value{reflect.ValueOf(w.svc), reflect.ValueOf(ctx), reflect.ValueOf(actor)}
		for i := 3; i < m.Type.NumIn(); i++ {
			p := m.Type.In(i)
			switch v, ok := words[p]; {
			case ok:
				in = append(in, reflect.ValueOf(v))
			case p.Kind() == reflect.String:
				text := string(session)
				if s, ok := strings[m.Name]; ok {
					text = s
				}
				in = append(in, reflect.ValueOf(text).Convert(p))
			default:
				in = append(in, reflect.Zero(p))
			}
		}
		return m.Func.Call(in)
	}
	typ := reflect.TypeFor[*service.Service]()
	actorType := reflect.TypeFor[service.Actor]()
	seen := 0
	for i := range typ.NumMethod() {
		m := typ.Method(i)
		if _, ok := public[m.Name]; ok {
			continue
		}
		require.True(t, m.Type.NumIn() >= 3 && m.Type.In(2) == actorType, "%s must take the actor or be listed as public", m.Name)
		errOf := func(a service.Actor) error {
			out := call(m, a)
			err, _ := out[len(out)-1].Interface().(error)
			return err
		}
		refused := func(err error) bool { return fault.Is(err, fault.Denied) || fault.Is(err, fault.NotFound) }
		require.True(t, fault.Is(errOf(service.Actor{}), fault.Denied), "%s answered an unknown actor: %v", m.Name, errOf(service.Actor{}))
		if !slices.Contains(own, m.Name) {
			err := errOf(stranger)
			require.True(t, refused(err), "%s answered a stranger: %v", m.Name, err)
		}
		seen++
	}
	require.Greater(t, seen, 50)
	require.Equal(t, cluster.Running, w.session(session).Status, "nothing happened to the session")

	// What everybody may ask shows nothing of others.
	ctx := t.Context()
	sessions, err := w.svc.ListSessions(ctx, stranger, service.SessionFilter{})
	require.NoError(t, err)
	require.Zero(t, sessions.Total)
	kernels, err := w.svc.ListKernels(ctx, stranger, service.KernelsFilter{Session: session})
	require.NoError(t, err)
	require.Zero(t, kernels.Total)
	byID, err := w.svc.SessionsByID(ctx, stranger, []cluster.SessionID{session})
	require.NoError(t, err)
	require.Empty(t, byID)
	keys, err := w.svc.ListKeypairs(ctx, stranger, service.KeypairFilter{})
	require.NoError(t, err)
	require.Equal(t, 1, keys.Total)
	require.Equal(t, stranger.AccessKey, keys.Items[0].AccessKey)
	users, err := w.svc.ListUsers(ctx, stranger, service.UserFilter{})
	require.NoError(t, err)
	require.Equal(t, 1, users.Total)
	domains, err := w.svc.ListDomains(ctx, stranger)
	require.NoError(t, err)
	require.Len(t, domains, 1)
	projects, err := w.svc.ListProjects(ctx, stranger, "default")
	require.NoError(t, err)
	require.Empty(t, projects)
	groups, err := w.svc.ListResourceGroups(ctx, stranger, nil)
	require.NoError(t, err)
	require.Empty(t, groups)

	// Monitors see and change nothing.
	monitor := stranger
	monitor.Role = "monitor"
	_, err = w.svc.FindSession(ctx, monitor, string(session), "")
	require.NoError(t, err)
	_, err = w.svc.DestroySession(ctx, monitor, string(session), service.DestroyOptions{Forced: true})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.svc.Runner(ctx, monitor, string(session), "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	k, err := w.svc.GetKeypair(ctx, monitor, w.admin.AccessKey)
	require.NoError(t, err)
	require.Empty(t, k.SecretKey, "secrets are for their owners and superadmins")
}
