package admin

import (
	"context"
	"net/http"
	"net/url"

	"berth.dev/berth/api"
)

// UsageReport is what was held in a period.
type UsageReport struct {
	Since string     `json:"since"`
	Until string     `json:"until"`
	Now   string     `json:"now"` // what is held is counted until then
	By    string     `json:"by"`
	Cost  *string    `json:"cost,omitempty"` // in the cluster's unit of account; absent when nothing has a price
	Rows  []UsageRow `json:"rows"`
}

// UsageSeries tells how a report came about, day by day or month by month: a report for each step that has begun, in order.
type UsageSeries struct {
	Step    string        `json:"step"` // day or month, of UTC
	Reports []UsageReport `json:"reports"`
}

// UsageRow is what one project, user, domain or resource group held.
type UsageRow struct {
	Key    string      `json:"key"`
	Name   string      `json:"name"`
	Domain string      `json:"domain_name,omitempty"`
	Cost   *string     `json:"cost,omitempty"`
	Slots  []UsageSlot `json:"slots"`
}

// UsageSlot is what was held of a slot.
type UsageSlot struct {
	Slot string `json:"slot"`
	// Amount is exact: thousandths of the slot's unit times microseconds.
	Amount string  `json:"amount"`
	Hours  string  `json:"hours"` // core-hours, device-hours; of memory GiB-hours
	Cost   *string `json:"cost,omitempty"`
}

// UsagePrice is what an hour of one unit of a slot costs from an instant on: of a core, a device, a GiB of memory.
type UsagePrice struct {
	ID            string `json:"id,omitempty"`
	Slot          string `json:"slot"`
	ResourceGroup string `json:"resource_group"` // "": of groups that have no price of their own
	PerHour       string `json:"per_hour"`
	ValidFrom     string `json:"valid_from"`
}

// UsagePrices are all prices.
type UsagePrices struct {
	Items []UsagePrice `json:"items"`
}

// UsageQuery selects a report: a month (yyyymm), or a period from Since to Until (RFC 3339).
type UsageQuery struct{ Month, Since, Until, By string }

// Usage reports what was held.
func Usage(ctx context.Context, c *api.Client, q UsageQuery) (UsageReport, error) {
	query := url.Values{}
	for name, v := range map[string]string{"month": q.Month, "since": q.Since, "until": q.Until, "by": q.By} {
		if v != "" {
			query.Set(name, v)
		}
	}
	var out UsageReport
	err := c.Get(ctx, "/usage/report", query, &out)
	return out, err
}

// Prices lists all prices.
func Prices(ctx context.Context, c *api.Client) ([]UsagePrice, error) {
	var out UsagePrices
	err := c.Get(ctx, "/usage/prices", nil, &out)
	return out.Items, err
}

// SetPrice sets what a slot costs from an instant on.
func SetPrice(ctx context.Context, c *api.Client, p UsagePrice) (UsagePrice, error) {
	var out UsagePrice
	err := c.Do(ctx, http.MethodPost, "/usage/prices", p, &out)
	return out, err
}

// RemovePrice forgets a price.
func RemovePrice(ctx context.Context, c *api.Client, id string) error {
	return c.Do(ctx, http.MethodDelete, "/usage/prices/"+url.PathEscape(id), nil, nil)
}
