package network

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
)

func mapsKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// rules are the tables of one network namespace.
type rules interface {
	put(list []table) error
	differs(list []table) (string, error)
	policies(list []table) map[netip.Addr]cluster.Egress
	admit(list []table, a netip.Addr, m member) error
	expel(list []table, a netip.Addr, m member) error
	turn(list []table, a netip.Addr, old, next cluster.Egress) error
	elements(t table, set string) []nftables.SetElement
}

// ruleset makes tables true in the kernel of one network namespace, over netlink.
type ruleset struct{ ns int }

func (r ruleset) conn() (*nftables.Conn, error) {
	if r.ns <= 0 {
		return nftables.New()
	}
	return nftables.New(nftables.WithNetNSFd(r.ns))
}

// put replaces the tables in one transaction: at no time is one of them missing or half made.
func (r ruleset) put(list []table) error {
	c, err := r.conn()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	id := uint32(0) // the library would take one of a counter that it does not guard
	for _, t := range list {
		c.AddTable(t.table)
		c.DelTable(t.table)
		c.AddTable(t.table)
		for _, ch := range t.chains {
			c.AddChain(ch.chain)
		}
		for _, s := range t.sets {
			id++
			s.set.ID = id
			if err := c.AddSet(s.set, nil); err != nil {
				return fmt.Errorf("describe set %s: %w", s.set.Name, err)
			}
			for some := range slices.Chunk(s.elements, maxElements) {
				if err := c.SetAddElements(s.set, some); err != nil {
					return fmt.Errorf("describe set %s: %w", s.set.Name, err)
				}
			}
		}
		for _, ch := range t.chains {
			for _, ru := range ch.rules {
				c.AddRule(&nftables.Rule{Table: t.table, Chain: ch.chain, Exprs: ru.linked(t), UserData: ru.mark()})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the rules: %w", refusals{err})
	}
	return nil
}

// refusals are the kernel's answers to the messages of a transaction. Those after the first refusal fail for it, so it alone is told.
type refusals struct{ all error }

func (r refusals) Error() string {
	err := r.all
	var several interface{ Unwrap() []error }
	for errors.As(err, &several) && len(several.Unwrap()) > 0 {
		err = several.Unwrap()[0]
	}
	return err.Error()
}

func (r refusals) Unwrap() error { return r.all }

// maxElements bounds the elements of one message: the kernel takes 64 KiB of them at most.
const maxElements = 256

// linked are the rule's expressions with the sets of a transaction. Sets have no name in the kernel before its end.
func (ru rule) linked(t table) []expr.Any {
	out := slices.Clone(ru.exprs)
	number := func(name string) uint32 {
		for _, s := range t.sets {
			if s.set.Name == name {
				return s.set.ID
			}
		}
		return 0
	}
	for i, e := range out {
		switch e := e.(type) {
		case *expr.Lookup:
			named := *e
			named.SetID = number(e.SetName)
			out[i] = &named
		case *expr.Dynset:
			named := *e
			named.SetID = number(e.SetName)
			out[i] = &named
		}
	}
	return out
}

// mark is what the kernel keeps of a rule beside its expressions; the nft command shows it as a comment.
func (ru rule) mark() []byte { return userdata.AppendString(nil, userdata.TypeComment, ru.text) }

// remove deletes the tables; absent ones are no error.
func (r ruleset) remove(list []table) error {
	c, err := r.conn()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	for _, t := range list {
		c.AddTable(t.table) // so that there is one to delete
		c.DelTable(t.table)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the rules: %w", refusals{err})
	}
	return nil
}

// differs says what of the tables is not in the kernel as it should be; "" when everything is.
func (r ruleset) differs(list []table) (string, error) {
	c, err := r.conn()
	if err != nil {
		return "", fmt.Errorf("open netlink: %w", err)
	}
	for _, t := range list {
		what, err := compare(c, t)
		if err != nil || what != "" {
			return what, err
		}
	}
	return "", nil
}

func compare(c *nftables.Conn, t table) (string, error) {
	name := fmt.Sprintf("table %s of family %s", t.table.Name, familyName(t.table.Family))
	all, err := c.ListChainsOfTableFamily(t.table.Family)
	if err != nil {
		return "", fmt.Errorf("read the chains: %w", err)
	}
	have := map[string]*nftables.Chain{}
	for _, ch := range all {
		if ch.Table.Name == t.table.Name {
			have[ch.Name] = ch
		}
	}
	if len(have) == 0 {
		return name + " is missing", nil
	}
	if len(have) != len(t.chains) {
		return fmt.Sprintf("%s has %d chains instead of %d", name, len(have), len(t.chains)), nil
	}
	for _, want := range t.chains {
		got := have[want.chain.Name]
		if got == nil || !sameHook(got, want.chain) {
			return fmt.Sprintf("chain %s of %s is missing or has another hook", want.chain.Name, name), nil
		}
		rules, err := c.GetRules(t.table, want.chain)
		if err != nil {
			return "", fmt.Errorf("read the rules of chain %s: %w", want.chain.Name, err)
		}
		same := slices.EqualFunc(rules, want.rules, func(a *nftables.Rule, b rule) bool { return bytes.Equal(a.UserData, b.mark()) })
		if !same {
			return fmt.Sprintf("the rules of chain %s of %s were changed", want.chain.Name, name), nil
		}
	}
	for _, want := range t.sets {
		got, err := c.GetSetElements(want.set)
		if err != nil && !missing(err) {
			return "", fmt.Errorf("read set %s: %w", want.set.Name, err)
		}
		if err == nil && want.set.Dynamic {
			continue // the kernel adds its elements
		}
		slices.SortFunc(got, compareElements)
		sorted := slices.SortedFunc(slices.Values(want.elements), compareElements)
		if err != nil || !slices.EqualFunc(got, sorted, func(a, b nftables.SetElement) bool { return compareElements(a, b) == 0 }) {
			return fmt.Sprintf("set %s of %s was changed", want.set.Name, name), nil
		}
	}
	return "", nil
}

func missing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, fs.ErrNotExist) }

func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyBridge {
		return "bridge"
	}
	return "inet"
}

func sameHook(a, b *nftables.Chain) bool {
	if (a.Hooknum == nil) != (b.Hooknum == nil) {
		return false
	}
	return a.Hooknum == nil || *a.Hooknum == *b.Hooknum && a.Priority != nil && *a.Priority == *b.Priority
}

// admit adds one session to the tables that are there: one transaction whatever the number of sessions. The chain of its policy
// must exist.
func (r ruleset) admit(list []table, a netip.Addr, m member) error {
	return r.change(list, func(c *nftables.Conn, hosts, outs, ports *nftables.Set) error {
		host, out := elementsOf(a, m.egress)
		return errors.Join(c.SetAddElements(hosts, []nftables.SetElement{host}), c.SetAddElements(outs, []nftables.SetElement{out}),
			c.SetAddElements(ports, []nftables.SetElement{portElement(m.port, a)}))
	})
}

// expel takes one session out.
func (r ruleset) expel(list []table, a netip.Addr, m member) error {
	return r.change(list, func(c *nftables.Conn, hosts, outs, ports *nftables.Set) error {
		host, out := elementsOf(a, m.egress)
		return errors.Join(c.SetDeleteElements(hosts, []nftables.SetElement{host}), c.SetDeleteElements(outs, []nftables.SetElement{out}),
			c.SetDeleteElements(ports, []nftables.SetElement{portElement(m.port, a)}))
	})
}

// turn gives a session another policy. Connections that the new one does not include end, because every packet is judged.
func (r ruleset) turn(list []table, a netip.Addr, old, next cluster.Egress) error {
	return r.change(list, func(c *nftables.Conn, hosts, outs, _ *nftables.Set) error {
		oldHost, oldOut := elementsOf(a, old)
		host, out := elementsOf(a, next)
		return errors.Join(c.SetDeleteElements(hosts, []nftables.SetElement{oldHost}), c.SetAddElements(hosts, []nftables.SetElement{host}),
			c.SetDeleteElements(outs, []nftables.SetElement{oldOut}), c.SetAddElements(outs, []nftables.SetElement{out}))
	})
}

func (r ruleset) change(list []table, do func(c *nftables.Conn, hosts, outs, ports *nftables.Set) error) error {
	c, err := r.conn()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	find := func(name string) *nftables.Set {
		for _, t := range list {
			for _, s := range t.sets {
				if s.set.Name == name {
					known := *s.set
					known.ID = 0 // of the transaction that made it
					return &known
				}
			}
		}
		return nil
	}
	if err := do(c, find(setHost), find(setOut), find(setPorts)); err != nil {
		return fmt.Errorf("describe the change of the rules: %w", err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("change the rules: %w", refusals{err})
	}
	return nil
}

// unavailable reports whether an error says that this kernel has no nftables, or that this process may not use them.
func unavailable(err error) bool {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOSYS,
		unix.ESOCKTNOSUPPORT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lacks reports whether an error says that this kernel does not know a part of the rules. It names parts that it does not know as not
// found or not valid.
func lacks(err error) bool { return unavailable(err) || missing(err) || errors.Is(err, unix.EINVAL) }

// policies reads the policies of sessions from the tables that are there; what cannot be read is left out.
func (r ruleset) policies(list []table) map[netip.Addr]cluster.Egress {
	out := map[netip.Addr]cluster.Egress{}
	for _, e := range r.elements(list[0], setOut) {
		a, ok := netip.AddrFromSlice(e.Key)
		if policy, known := egressOf(chainOf(e)); ok && known {
			out[a] = policy
		}
	}
	return out
}

// elements reads a set of a table that is there; none when it cannot be read.
func (r ruleset) elements(t table, name string) []nftables.SetElement {
	c, err := r.conn()
	if err != nil {
		return nil
	}
	for _, s := range t.sets {
		if s.set.Name == name {
			found, err := c.GetSetElements(s.set)
			if err != nil {
				return nil
			}
			return found
		}
	}
	return nil
}

// egressOf is the policy that a chain stands for.
func egressOf(chain string) (cluster.Egress, bool) {
	switch chain {
	case chainOpenOut:
		return cluster.Egress{Mode: cluster.EgressOpen}, true
	case chainNone:
		return cluster.Egress{Mode: cluster.EgressNone}, true
	}
	var a, b, c, d uint8
	var port uint16
	if n, err := fmt.Sscanf(chain, "proxy_%d_%d_%d_%d_%d", &a, &b, &c, &d, &port); n == 5 && err == nil {
		return cluster.Egress{Mode: cluster.EgressProxy, Proxy: netip.AddrPortFrom(netip.AddrFrom4([4]byte{a, b, c, d}), port)}, true
	}
	return cluster.Egress{}, false
}
