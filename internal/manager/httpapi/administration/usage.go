package administration

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/usage"
)

// month reads yyyymm.
func month(p *params.Set, name, text string) usage.Period {
	at, err := time.Parse("200601", text)
	if err != nil {
		p.Fail(name, "must be a month such as 202601")
		return usage.Period{}
	}
	return usage.Month(at.Year(), at.Month())
}

// day reads yyyymmdd.
func day(p *params.Set, name string) time.Time {
	at, err := time.Parse("20060102", p.Need(name))
	if err != nil {
		p.Fail(name, "must be a day such as 20260131")
	}
	return at
}

func (h *Handlers) usageMonth(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	var projects []string
	for _, ids := range p.List("group_ids") { // official clients write all of them into one text
		projects = append(projects, strings.Split(ids, ",")...)
	}
	span := month(p, "month", p.Need("month"))
	if err := p.Err(); err != nil {
		return err
	}
	return h.usageOf(c, span, projects)
}

// usagePeriod answers about whole days; the last one belongs to the period.
func (h *Handlers) usagePeriod(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	span := usage.Period{From: day(p, "start_date"), Until: day(p, "end_date").AddDate(0, 0, 1)}
	var projects []string
	if id := p.Text("group_id|project_id", ""); id != "" {
		projects = []string{id}
	}
	if err := p.Err(); err != nil {
		return err
	}
	return h.usageOf(c, span, projects)
}

func (h *Handlers) usageOf(c route.Call, span usage.Period, projects []string) error {
	projects = slices.DeleteFunc(projects, func(id string) bool { return id == "" })
	kernels, err := h.Usage.Kernels(c.Context(), c.Actor(), span, projects)
	if err != nil {
		return err
	}
	times, err := h.statusTimes(c, kernels)
	if err != nil {
		return err
	}
	out := []admin.UsageProject{}
	for _, k := range kernels {
		if n := len(out); n == 0 || out[n-1].ID != string(k.Project) {
			out = append(out, admin.UsageProject{Domain: k.Domain, ID: string(k.Project), Name: k.ProjectName, DeviceTypes: []string{},
				Kernels: []admin.UsageKernel{}, ProjectID: string(k.Project), ProjectName: k.ProjectName})
		}
		one, of := usageKernel(k), &out[len(out)-1]
		one.StatusHistory = times[k.Session]
		of.CPU, of.Mem, of.GPU, of.SharedMemory = of.CPU+one.CPU, of.Mem+one.Mem, of.GPU+one.GPU, of.SharedMemory+one.SharedMemory
		of.DeviceTypes = append(of.DeviceTypes, one.DeviceTypes...)
		slices.Sort(of.DeviceTypes)
		of.DeviceTypes = slices.Compact(of.DeviceTypes)
		of.Kernels = append(of.Kernels, one)
		of.Total = admin.UsageTotal{CPUUsed: of.CPUUsed, MemUsed: of.MemUsed, IORead: of.IORead, IOWrite: of.IOWrite, GPU: of.GPU,
			GPUMem: of.GPUMem, DeviceTypes: of.DeviceTypes}
	}
	return route.OK(c, out)
}

// historyPage bounds of how many sessions the statuses are read at once.
const historyPage = 1000

// statusTimes tell when the sessions of kernels came to their statuses; those that are forgotten have none.
func (h *Handlers) statusTimes(c route.Call, kernels []usage.Kernel) (map[cluster.SessionID]map[string]any, error) {
	ids := make([]cluster.SessionID, len(kernels))
	for i, k := range kernels {
		ids[i] = k.Session
	}
	slices.Sort(ids)
	out := map[cluster.SessionID]map[string]any{}
	for page := range slices.Chunk(slices.Compact(ids), historyPage) {
		times, err := h.Sessions.StatusTimes(c.Context(), c.Actor(), page)
		if err != nil {
			return nil, err
		}
		for id, of := range times {
			out[id] = map[string]any{}
			for status, at := range of {
				out[id][string(status)] = api.TimeText(at)
			}
		}
	}
	return out, nil
}

// timeOrNothing is the text of a moment, "" while it is not known: official clients put both moments into one line.
func timeOrNothing(t *time.Time) string {
	if t == nil {
		return ""
	}
	return api.TimeText(*t)
}

func usageKernel(k usage.Kernel) admin.UsageKernel {
	known := func(text string) *string {
		if text == "" {
			return nil
		}
		return &text
	}
	out := admin.UsageKernel{ID: string(k.ID), Session: string(k.Session), ContainerID: known(k.ContainerID), Domain: k.Domain,
		ProjectID: string(k.Project), ProjectName: k.ProjectName, Name: k.SessionName, AccessKey: string(k.AccessKey), Email: k.Email,
		FullName: known(k.FullName), Agent: string(k.Agent), UsedTime: spent(k.Held),
		UsedDays:    int((k.Held + 24*time.Hour - 1) / (24 * time.Hour)),
		DeviceTypes: []string{}, Hosts: []string{}, ImageName: k.Image, CreatedAt: timeOrNothing(k.CreatedAt),
		TerminatedAt: timeOrNothing(k.EndedAt),
		Status:       known(k.Status), StatusInfo: known(k.StatusInfo), StatusChanged: route.TimeOrNil(k.StatusChanged),
		ClusterMode: known(k.ClusterMode)}
	if n, err := cluster.ParseBytes(k.SharedMemory); err == nil {
		out.SharedMemory = n
	}
	for _, slot := range k.Slots.Names() {
		switch n := k.Slots[slot]; slot {
		case cluster.SlotCPU:
			out.CPU = float64(n) / cluster.Milli
		case cluster.SlotMem:
			out.Mem = n.Units()
		default:
			out.GPU += float64(n) / cluster.Milli
			kind, _, _ := strings.Cut(string(slot), ".")
			if !slices.Contains(out.DeviceTypes, kind) {
				out.DeviceTypes = append(out.DeviceTypes, kind)
			}
		}
	}
	return out
}

// spent writes a time as the official clients know it: days in words, then hours without a leading zero.
func spent(d time.Duration) string {
	days, rest := d/(24*time.Hour), d%(24*time.Hour)
	text := fmt.Sprintf("%d:%02d:%02d", rest/time.Hour, rest/time.Minute%60, rest/time.Second%60)
	if micro := rest % time.Second / time.Microsecond; micro > 0 {
		text += fmt.Sprintf(".%06d", micro)
	}
	switch {
	case days == 1:
		return "1 day, " + text
	case days > 1:
		return fmt.Sprintf("%d days, %s", days, text)
	}
	return text
}

func (h *Handlers) usageMine(c route.Call) error {
	bins, err := h.Usage.Mine(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, usageBins(bins))
}

func (h *Handlers) usageAll(c route.Call) error {
	bins, err := h.Usage.Everybodys(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, usageBins(bins))
}

func usageBins(bins []usage.Bin) []admin.UsageBin {
	count := func(n float64) admin.UsageQuantity { return admin.UsageQuantity{Value: &n, Unit: "count"} }
	unknown := admin.UsageQuantity{Unit: "bytes"}
	out := make([]admin.UsageBin, len(bins))
	for i, b := range bins {
		mem := float64(int64(b.Mem))
		out[i] = admin.UsageBin{Date: float64(b.At.Unix()), Sessions: count(float64(b.Sessions)), CPU: count(b.CPU), GPU: count(b.Devices),
			Mem: admin.UsageQuantity{Value: &mem, Unit: "bytes"}, IORead: unknown, IOWrite: unknown, Disk: unknown}
	}
	return out
}

// askedUsage reads what a report is about.
func askedUsage(p *params.Set) (usage.Period, usage.Grouping) {
	by := usage.Grouping(p.Text("by", string(usage.ByProject)))
	if text := p.Text("month", ""); text != "" {
		return month(p, "month", text), by
	}
	return usage.Period{From: instant(p, "since"), Until: instant(p, "until")}, by
}

func (h *Handlers) usageReport(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	span, by := askedUsage(p)
	if err := p.Err(); err != nil {
		return err
	}
	r, err := h.Usage.Report(c.Context(), c.Actor(), span, by)
	if err != nil {
		return err
	}
	return route.OK(c, reportOf(r))
}

func (h *Handlers) usageSeries(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	span, by := askedUsage(p)
	step := usage.Step(p.Text("step", string(usage.Daily)))
	if err := p.Err(); err != nil {
		return err
	}
	reports, err := h.Usage.Series(c.Context(), c.Actor(), span, by, step)
	if err != nil {
		return err
	}
	out := admin.UsageSeries{Step: string(step), Reports: make([]admin.UsageReport, len(reports))}
	for i, r := range reports {
		out.Reports[i] = reportOf(r)
	}
	return route.OK(c, out)
}

func reportOf(r usage.Report) admin.UsageReport {
	out := admin.UsageReport{Since: api.TimeText(r.From), Until: api.TimeText(r.Until), Now: api.TimeText(r.Now), By: string(r.By),
		Cost: money(r.Cost), Rows: make([]admin.UsageRow, 0, len(r.Rows))}
	for _, row := range r.Rows {
		v := admin.UsageRow{Key: row.Key, Name: row.Name, Domain: row.Domain, Cost: money(row.Cost), Slots: []admin.UsageSlot{}}
		for _, u := range row.Slots {
			v.Slots = append(v.Slots, admin.UsageSlot{Slot: string(u.Slot), Amount: u.Amount.String(), Hours: u.Hours.FloatString(6),
				Cost: money(u.Cost)})
		}
		out.Rows = append(out.Rows, v)
	}
	return out
}

// instant reads a time.
func instant(p *params.Set, name string) time.Time {
	at, err := time.Parse(time.RFC3339, p.Need(name))
	if err != nil {
		p.Fail(name, "must be a time such as 2026-01-31T08:00:00Z")
	}
	return at.UTC()
}

// money writes a cost, rounded to millionths; nil is unknown.
func money(r *big.Rat) *string {
	if r == nil {
		return nil
	}
	text := r.FloatString(6)
	return &text
}

func usagePrice(p usage.Price) admin.UsagePrice {
	return admin.UsagePrice{ID: p.ID, Slot: string(p.Slot), ResourceGroup: p.ResourceGroup, PerHour: p.PerHour,
		ValidFrom: api.TimeText(p.ValidFrom)}
}

func (h *Handlers) usagePrices(c route.Call) error {
	prices, err := h.Usage.Prices(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	out := admin.UsagePrices{Items: make([]admin.UsagePrice, len(prices))}
	for i, p := range prices {
		out.Items[i] = usagePrice(p)
	}
	return route.OK(c, out)
}

func (h *Handlers) setUsagePrice(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	price := usage.Price{Slot: cluster.SlotName(p.Need("slot")), ResourceGroup: p.Text("resource_group|scaling_group", ""),
		PerHour: p.Need("per_hour"), ValidFrom: instant(p, "valid_from")}
	if err := p.Err(); err != nil {
		return err
	}
	set, err := h.Usage.SetPrice(c.Context(), c.Actor(), price)
	if err != nil {
		return err
	}
	return route.OK(c, usagePrice(set))
}

func (h *Handlers) removeUsagePrice(c route.Call) error {
	if err := h.Usage.RemovePrice(c.Context(), c.Actor(), c.Path("id")); err != nil {
		return err
	}
	return c.Nothing()
}
