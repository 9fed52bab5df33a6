package folder

import (
	"context"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/list"
)

var volumeFields = list.Fields{
	"id": list.Text("v.id"), "backend": list.Text("v.backend"), "path": list.Text("v.path"), "fsprefix": list.Text("v.fsprefix"),
	"proxy": list.Text("split_part(v.id, ':', 1)"), "name": list.Text("substr(v.id, strpos(v.id, ':') + 1)"),
	"capabilities": list.Texts("v.capabilities"),
}

// SearchVolumes selects a page of Volumes by id, backend, path, fsprefix, proxy, name and capabilities. The database filters
// what proxies announced, so that the language is that of the other lists.
func (s *Service) SearchVolumes(ctx context.Context, a authz.Actor, q SearchQuery) (list.Page[Volume], error) {
	out := list.Page[Volume]{Items: []Volume{}}
	all, err := s.Volumes(ctx, a)
	if err != nil {
		return out, err
	}
	type row struct {
		ID           string   `json:"id"`
		Backend      string   `json:"backend"`
		Path         string   `json:"path"`
		FSPrefix     string   `json:"fsprefix"`
		Capabilities []string `json:"capabilities"`
	}
	rows, byID := make([]row, len(all)), map[string]Volume{}
	for i, v := range all {
		rows[i], byID[v.ID] = row{v.ID, v.Backend, v.Path, v.FSPrefix, v.Capabilities}, v
	}
	raw, err := json.Marshal(rows)
	if err != nil {
		return out, fmt.Errorf("write down volumes: %w", err)
	}
	l := &list.Spec{Key: "v.id", Fields: volumeFields, Order: "v.id"}
	l.From = "jsonb_to_recordset(" + l.Arg(string(raw)) + "::jsonb) AS v(id text, backend text, path text, fsprefix text, capabilities text[])"
	ids, total, err := l.Keys(ctx, s.d.Store.DB(), q.Query)
	if err != nil {
		return out, fmt.Errorf("filter volumes: %w", err)
	}
	out.Items, out.Total = list.InOrder(ids, byID), total
	return out, nil
}
