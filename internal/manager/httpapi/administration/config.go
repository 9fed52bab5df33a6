package administration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/resource"
)

// The wire's shared configuration is a tree of keys in etcd. Berth keeps none of it there: each key below stands for a setting that has a
// use case of its own, which decides and writes. Other keys are not there, and cannot be written.

// setting is what a key of the shared configuration stands for. A nil set is of a value that is decided elsewhere; noted says besides what
// of the value is not obeyed.
type setting struct {
	get   func(ctx context.Context, a authz.Actor) (string, error)
	set   func(ctx context.Context, a authz.Actor, value string) error
	noted func(ctx context.Context, a authz.Actor, value string) (string, error)
	// unset is what delete writes.
	unset string
}

func (h *Handlers) settings() map[string]setting {
	fixed := func(value string) func(context.Context, authz.Actor) (string, error) {
		return func(context.Context, authz.Actor) (string, error) { return value, nil }
	}
	return map[string]setting{
		"volumes/default_host": {
			get: func(ctx context.Context, a authz.Actor) (string, error) {
				hosts, err := h.Folders.AllHosts(ctx, a)
				return hosts.Default, err
			},
			set: h.setDefaultHost,
		},
		"config/api/resources/group_resource_visibility": {
			get: func(ctx context.Context, a authz.Actor) (string, error) {
				hidden, err := h.Resources.ProjectResourcesHidden(ctx, a)
				return fmt.Sprint(!hidden), err
			},
			set: func(ctx context.Context, a authz.Actor, value string) error {
				if value != "true" && value != "false" {
					return fault.Invalidf("group_resource_visibility is true or false, not %q", value)
				}
				return h.Resources.SetProjectResourcesHidden(ctx, a, value == "false")
			},
			unset: "true",
		},
		"config/api/resources/slot_aliases": {
			get: func(ctx context.Context, a authz.Actor) (string, error) {
				t, err := h.Resources.SlotAliases(ctx, a)
				if err != nil {
					return "", err
				}
				text, err := json.Marshal(t)
				return string(text), err
			},
			set: func(ctx context.Context, a authz.Actor, value string) error {
				t, err := resource.ParseAliases(value)
				if err != nil {
					return err
				}
				return h.Resources.SetSlotAliases(ctx, a, t)
			},
		},
		"manager/status": {
			get: func(ctx context.Context, a authz.Actor) (string, error) {
				st, err := h.Operations.ManagerStatus(ctx, a)
				return st.Status, err
			},
			set:   h.Operations.SetManagerStatus,
			unset: "running",
		},
		"config/docker/image/auto_pull": {get: h.Images.AutoPull, noted: h.Images.SetAutoPull, unset: cluster.PullDigest},
		"volumes/_types/user":           {get: fixed("")},
		"volumes/_types/group":          {get: fixed("")},
	}
}

func (h *Handlers) setDefaultHost(ctx context.Context, a authz.Actor, value string) error {
	hosts, err := h.Folders.AllHosts(ctx, a)
	if err != nil {
		return err
	}
	if value != "" && !slices.Contains(hosts.Allowed, value) {
		return fault.NotFoundf("No such folder host: %s", value).WithNext("the hosts are %s", strings.Join(hosts.Allowed, ", "))
	}
	return h.Folders.SetDefaultHost(ctx, a, value)
}

// under are the settings of a key, or with prefix also those below it, by what follows the key.
func (h *Handlers) under(key string, prefix bool) map[string]setting {
	out := map[string]setting{}
	for k, s := range h.settings() {
		if k == key {
			out[""] = s
		} else if below, ok := strings.CutPrefix(k, key+"/"); prefix && (ok || key == "") {
			if key == "" {
				below = k
			}
			out[below] = s
		}
	}
	return out
}

// sharedConfig reads the parameters of a request about the configuration, which is for superadmins, whatever the key.
func sharedConfig(c route.Call) (p *params.Set, key string, prefix bool, err error) {
	if err := authz.Cluster.Need(c.Actor(), authz.Administer, authz.Object{}, "read and change the configuration of the cluster"); err != nil {
		return nil, "", false, err
	}
	if p, err = c.Params(); err != nil {
		return nil, "", false, err
	}
	key, prefix = strings.Trim(p.Text("key", ""), "/"), p.Flag("prefix", false)
	if key == "" && !prefix {
		p.Fail("key", "is required")
	}
	return p, key, prefix, p.Err()
}

func (h *Handlers) getConfig(c route.Call) error {
	_, key, prefix, err := sharedConfig(c)
	if err != nil {
		return err
	}
	tree := map[string]any{}
	for below, s := range h.under(key, prefix) {
		value, err := s.get(c.Context(), c.Actor())
		if err != nil {
			return err
		}
		put(tree, below, value)
	}
	switch own, alone := tree[""]; {
	case len(tree) == 0:
		return route.OK(c, admin.ConfigValue{})
	case alone && len(tree) == 1:
		return route.OK(c, admin.ConfigValue{Result: own})
	}
	return route.OK(c, admin.ConfigValue{Result: tree})
}

// put writes a value at a path of a tree.
func put(tree map[string]any, path, value string) {
	for {
		name, rest, deeper := strings.Cut(path, "/")
		if !deeper {
			tree[name] = value
			return
		}
		next, ok := tree[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[name] = next
		}
		tree, path = next, rest
	}
}

// setConfig writes one value, or the leaves of an object, the bad ones before any is written.
func (h *Handlers) setConfig(c route.Call) error {
	p, key, _, err := sharedConfig(c)
	if err != nil {
		return err
	}
	value, _ := p.Get("value")
	leaves := map[string]string{}
	if err := flatten(leaves, key, value, 0); err != nil {
		return err
	}
	known := h.settings()
	for k, text := range leaves {
		if err := h.mayWrite(c, known, k, &text); err != nil {
			return err
		}
	}
	done := admin.ConfigDone{Result: "ok"}
	for _, k := range slices.Sorted(maps.Keys(leaves)) {
		note, err := known[k].write(c.Context(), c.Actor(), leaves[k])
		if err != nil {
			return err
		}
		if note != "" {
			done.Notes = append(done.Notes, k+": "+note)
		}
	}
	return route.OK(c, done)
}

// write sets a value, and says what of it is not obeyed.
func (s setting) write(ctx context.Context, a authz.Actor, value string) (note string, err error) {
	switch {
	case s.noted != nil:
		return s.noted(ctx, a, value)
	case s.set != nil:
		return "", s.set(ctx, a, value)
	}
	return "", nil
}

// mayWrite refuses keys that Berth does not know and values that are decided elsewhere; a nil value is that of a delete.
func (h *Handlers) mayWrite(c route.Call, known map[string]setting, key string, value *string) error {
	s, ok := known[key]
	if !ok {
		return fault.Invalidf("the configuration of this cluster has no key %q", key).
			WithNext("the keys are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	if s.set != nil || s.noted != nil {
		return nil
	}
	is, err := s.get(c.Context(), c.Actor())
	if err != nil || value != nil && *value == is {
		return err
	}
	return fault.Deniedf("%s is %q in every cluster of Berth", key, is)
}

// maxLeaves bounds what one request writes, maxDepth how deep.
const (
	maxLeaves = 16
	maxDepth  = 8
)

// flatten adds the leaves of a value by their keys.
func flatten(out map[string]string, key string, value any, depth int) error {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 || depth == maxDepth {
			return fault.Invalidf("the value of %q is empty or too deep", key)
		}
		for name, inner := range v {
			at := strings.Trim(key+"/"+name, "/")
			if name == "" {
				at = key
			}
			if err := flatten(out, at, inner, depth+1); err != nil {
				return err
			}
		}
	case nil, []any:
		return fault.Invalidf("the value of %q must be a text, a number or an object of them", key)
	default:
		out[key] = fmt.Sprint(v)
	}
	if len(out) > maxLeaves {
		return fault.Invalidf("one request sets %d values at most", maxLeaves)
	}
	return nil
}

func (h *Handlers) deleteConfig(c route.Call) error {
	_, key, prefix, err := sharedConfig(c)
	if err != nil {
		return err
	}
	if prefix {
		// That would thaw a frozen cluster and more, because a key was too short.
		return fault.Invalidf("keys are deleted one by one").WithNext("name one key without --prefix")
	}
	known := h.settings()
	if err := h.mayWrite(c, known, key, nil); err != nil {
		return err
	}
	if _, err := known[key].write(c.Context(), c.Actor(), known[key].unset); err != nil {
		return err
	}
	return route.OK(c, admin.ConfigDone{Result: "ok"})
}
