package folder

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/service/minilang"
)

var volumeFields = minilang.Fields{
	"id": minilang.Text("v.id"), "backend": minilang.Text("v.backend"), "path": minilang.Text("v.path"), "fsprefix": minilang.Text("v.fsprefix"),
	"proxy": minilang.Text("split_part(v.id, ':', 1)"), "name": minilang.Text("substr(v.id, strpos(v.id, ':') + 1)"), "capabilities": minilang.Texts("v.capabilities"),
}

// SearchVolumes selects a page of Volumes by id, backend, path, fsprefix, proxy, name and capabilities. The database filters what
// proxies announced, so that the language is that of the other lists.
func (s *Service) SearchVolumes(ctx context.Context, a Actor, q SearchQuery) (Page[Volume], error) {
	none := Page[Volume]{Items: []Volume{}}
	all, err := s.Volumes(ctx, a)
	if err != nil {
		return none, err
	}
	if q.Limit == 0 {
		q.Limit = 20
	}
	if q.Limit < 1 || q.Limit > 100 || q.Offset < 0 {
		return none, fault.Invalidf("a page has 1 to 100 items from the first on, not %d from %d", q.Limit, q.Offset).WithReason("invalid-api-params")
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
		return none, fmt.Errorf("write down volumes: %w", err)
	}
	var b minilang.Builder
	from := "jsonb_to_recordset(" + b.Arg(string(raw)) + "::jsonb) AS v(id text, backend text, path text, fsprefix text, capabilities text[])"
	where, err := minilang.Filter(&b, volumeFields, q.Filter)
	if err != nil {
		return none, err
	}
	order, err := minilang.Order(volumeFields, q.Order, "v.id", "v.id")
	if err != nil {
		return none, err
	}
	found, err := s.d.Store.Pool().Query(ctx, "SELECT v.id FROM "+from+" WHERE "+where+" ORDER BY "+order, b.Args...)
	if err != nil {
		return none, fmt.Errorf("filter volumes: %w", err)
	}
	ids, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return none, fmt.Errorf("filter volumes: %w", err)
	}
	none.Total = len(ids)
	for _, id := range ids[min(q.Offset, len(ids)):min(q.Offset+q.Limit, len(ids))] {
		none.Items = append(none.Items, byID[id])
	}
	return none, nil
}
