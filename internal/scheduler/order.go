package scheduler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler/fairshare"
	"berth.dev/berth/internal/scheduler/option"
)

const (
	maxPriority = 100
	// agingReach bounds the waiting that aging looks at, ten years.
	agingReach = int64(10 * 365 * 24 * time.Hour)
)

// ownerShares is an owner as order policies see it.
type ownerShares struct {
	Owner Owner
	// Dominant is the largest part, over slots, of the group's capacity that the owner's user
	// holds now, with what this pass has placed already.
	Dominant float64
	// Domain, Project and User are the decayed uses that SetShare told; 0 for one who never used anything.
	Domain, Project, User float64
	// Line is the same from the topmost project down to the user, where there is a tree of quotas or projects lie in projects; else nil.
	Line []float64
}

// ordering is an order policy: it decides between owners whose sessions have equal priority. Sessions of one owner, and of owners that
// compare equal, go by age.
type ordering interface {
	// Compare is negative when a goes before b. It must be a total order up to equality and
	// depend on nothing but the arguments.
	Compare(a, b *ownerShares) int
	// Youngest reports that the youngest session goes first, not the oldest.
	Youngest() bool
}

// orderKind is a registered order policy.
type orderKind struct {
	name string
	make func(*option.Reader) ordering
}

// orders lists the order policies, the default first.
var orders = []orderKind{
	{"fifo", func(*option.Reader) ordering { return byAge{} }},
	{"lifo", func(*option.Reader) ordering { return byAge{youngest: true} }},
	{"drf", func(*option.Reader) ordering { return dominant{} }},
	{"fair-share", func(o *option.Reader) ordering {
		fairshare.Read(o)
		return fairShare{}
	}},
}

// Orders lists the registered queue orders, the default first.
func Orders() []string {
	out := make([]string, len(orders))
	for i, k := range orders {
		out[i] = k.name
	}
	return out
}

// newOrder makes an order policy with its options. aging is how long a session waits for each
// step of priority that it gains, 0 for never.
func newOrder(name string, options map[string]any) (order ordering, aging time.Duration, err error) {
	if name == "" {
		name = orders[0].name
	}
	for _, k := range orders {
		if k.name != name {
			continue
		}
		o := &option.Reader{Of: "the scheduler " + name, Values: options}
		aging = time.Duration(o.Number("ageing_seconds", 0, 0, 1e9) * float64(time.Second))
		order = k.make(o)
		err = o.Done()
		if err == nil && aging > 0 && order.Youngest() {
			err = fault.Invalidf("ageing_seconds does not go with the scheduler %s, which prefers the youngest", name).
				WithNext("leave ageing_seconds out")
		}
		return order, aging, err
	}
	return nil, 0, fault.Invalidf("the scheduler %q does not exist", name).WithNext("use one of %s", strings.Join(Orders(), ", "))
}

// byAge treats all owners alike.
type byAge struct{ youngest bool }

func (byAge) Compare(_, _ *ownerShares) int { return 0 }
func (o byAge) Youngest() bool              { return o.youngest }

// dominant is dominant resource fairness: who holds least of what he holds most goes first.
type dominant struct{}

func (dominant) Compare(a, b *ownerShares) int { return cmp.Compare(a.Dominant, b.Dominant) }
func (dominant) Youngest() bool                { return false }

// fairShare lets those go first who used least, by domain, then project, then what lies in it, down to the user.
type fairShare struct{}

func (fairShare) Compare(a, b *ownerShares) int {
	if a.Line != nil && b.Line != nil {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), slices.Compare(a.Line, b.Line))
	}
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Project, b.Project), cmp.Compare(a.User, b.User))
}

func (fairShare) Youngest() bool { return false }
