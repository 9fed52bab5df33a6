package usage

import (
	"context"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxPrices is how many prices a cluster has at most, those of the past included.
const maxPrices = 1000

// Price is what an hour of one unit of a slot costs, in the cluster's own unit of account: of a core, of a device, of a GiB of memory.
type Price struct {
	ID   string
	Slot cluster.SlotName
	// ResourceGroup is the one whose agents it is for; "" is for those that have no price of their own for the slot.
	ResourceGroup string
	// PerHour is a decimal number with at most 9 digits after the point.
	PerHour string
	// ValidFrom is when it begins; it ends where the next one of the same slot and group begins.
	ValidFrom time.Time
}

// decimal is what prices may look like.
var decimal = regexp.MustCompile(`^[0-9]{1,11}(\.[0-9]{1,9})?$`)

// Prices lists all prices, by slot, group and time, for whoever has a right to see what things cost: every user.
func (s *Service) Prices(ctx context.Context, a authz.Actor) ([]Price, error) {
	if err := authz.UsagePrices.Need(a, authz.See, authz.Object{}, "see prices"); err != nil {
		return nil, err
	}
	return s.prices(ctx)
}

func (s *Service) prices(ctx context.Context) ([]Price, error) {
	rows, err := s.d.Store.UsagePrices(ctx, maxPrices)
	if err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	out := make([]Price, len(rows))
	for i, r := range rows {
		out[i] = price(dbgen.SetUsagePriceRow(r))
	}
	return out, nil
}

func price(r dbgen.SetUsagePriceRow) Price {
	return Price{ID: r.ID, Slot: cluster.SlotName(r.Slot), ResourceGroup: r.ResourceGroup, PerHour: plain(rat(r.PerHour)),
		ValidFrom: r.ValidFrom.UTC()}
}

// SetPrice sets what a slot costs from an instant on (superadmins). It replaces a price of the same slot and group from the same instant.
// Reports of the past change when it begins in the past.
func (s *Service) SetPrice(ctx context.Context, a authz.Actor, p Price) (out Price, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "usage-price.set", string(p.Slot))
	defer end(&err)
	if err := authz.UsagePrices.Need(a, authz.Administer, authz.Object{}, "set prices"); err != nil {
		return Price{}, err
	}
	switch {
	case p.Slot == "" || len(p.Slot) > 64 || store.Text(string(p.Slot)) != string(p.Slot):
		return Price{}, fault.Invalidf("%.80q is no slot", string(p.Slot)).WithNext("name one such as cpu, mem or cuda.device")
	case len(p.ResourceGroup) > 64 || store.Text(p.ResourceGroup) != p.ResourceGroup:
		return Price{}, fault.Invalidf("%.80q is no resource group", p.ResourceGroup)
	case !decimal.MatchString(p.PerHour):
		return Price{}, fault.Invalidf("%.40q is no price", p.PerHour).
			WithNext("write a decimal number such as 0.25, with at most 11 digits before the point and 9 after it")
	case p.ValidFrom.Year() < 1970 || p.ValidFrom.Year() > 9999:
		return Price{}, fault.Invalidf("a price cannot begin at %s", p.ValidFrom.Format(time.RFC3339))
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		n, err := tx.CountUsagePrices(ctx)
		if err != nil {
			return fmt.Errorf("count prices: %w", err)
		}
		if n >= maxPrices {
			return fault.Exhaustedf("there are %d prices already", n).WithNext("remove those of times that nobody asks about any more")
		}
		row, err := tx.SetUsagePrice(ctx, dbgen.SetUsagePriceParams{ID: s.d.IDs(), Slot: string(p.Slot), ResourceGroup: p.ResourceGroup,
			PerHour: p.PerHour, ValidFrom: p.ValidFrom})
		if err != nil {
			return fmt.Errorf("set the price of %s: %w", p.Slot, err)
		}
		out = price(row)
		return nil
	})
	return out, err
}

// RemovePrice forgets a price, as if it had never been (superadmins).
func (s *Service) RemovePrice(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "usage-price.remove", id)
	defer end(&err)
	if err := authz.UsagePrices.Need(a, authz.Administer, authz.Object{}, "remove prices"); err != nil {
		return err
	}
	uuid, ok := cluster.CanonicalUUID(id)
	if !ok {
		return authz.NotFound(authz.UsagePrices.Noun, id)
	}
	n, err := s.d.Store.RemoveUsagePrice(ctx, uuid)
	if err != nil {
		return fmt.Errorf("remove price %s: %w", id, err)
	}
	if n == 0 {
		return authz.NotFound(authz.UsagePrices.Noun, id)
	}
	return nil
}

// spans cuts a period where prices begin: within each span every price is one number.
func spans(p Period, prices []Price) []Period {
	cuts := []time.Time{p.From, p.Until}
	for _, price := range prices {
		if price.ValidFrom.After(p.From) && price.ValidFrom.Before(p.Until) {
			cuts = append(cuts, price.ValidFrom)
		}
	}
	slices.SortFunc(cuts, time.Time.Compare)
	cuts = slices.CompactFunc(cuts, time.Time.Equal)
	out := make([]Period, len(cuts)-1)
	for i := range out {
		out[i] = Period{cuts[i], cuts[i+1]}
	}
	return out
}

// perHour is the price of a slot in a group at an instant; nil: none is known.
func perHour(prices []Price, slot cluster.SlotName, group string, at time.Time) *big.Rat {
	var best *Price
	for i, p := range prices {
		if p.Slot != slot || p.ResourceGroup != "" && p.ResourceGroup != group || p.ValidFrom.After(at) {
			continue
		}
		if best == nil || p.ResourceGroup != "" && best.ResourceGroup == "" ||
			p.ResourceGroup == best.ResourceGroup && p.ValidFrom.After(best.ValidFrom) {
			best = &prices[i]
		}
	}
	if best == nil {
		return nil
	}
	return rat(best.PerHour)
}

// perSecond is how many thousandths times microseconds the priced unit held for a second has: a core, a device, a GiB of memory.
func perSecond(slot cluster.SlotName) *big.Int {
	unit := big.NewInt(cluster.Milli * 1_000_000)
	if slot == cluster.SlotMem {
		unit.Mul(unit, big.NewInt(1<<30))
	}
	return unit
}

// hours turns thousandths times microseconds into hours of the priced unit.
func hours(slot cluster.SlotName, amount *big.Int) *big.Rat {
	unit := perSecond(slot)
	return new(big.Rat).SetFrac(amount, unit.Mul(unit, big.NewInt(3600)))
}

func rat(text string) *big.Rat {
	if r, ok := new(big.Rat).SetString(text); ok {
		return r
	}
	return new(big.Rat)
}

// plain writes a number with at most 9 digits after the point, without trailing zeros.
func plain(r *big.Rat) string {
	text := r.FloatString(9)
	for text[len(text)-1] == '0' {
		text = text[:len(text)-1]
	}
	if text[len(text)-1] == '.' {
		text = text[:len(text)-1]
	}
	return text
}
