package network

import (
	"errors"
	"fmt"
)

// refusing are the rules of a kernel that takes none, as long as err is set.
type refusing struct {
	rules
	err   *error
	asked *int
}

func (r refusing) put(list []table) error {
	*r.asked++
	if *r.err != nil {
		return *r.err
	}
	return r.rules.put(list)
}

// Refuse has the kernel answer err to whoever makes tables; nil lets it take them again. It returns the number of those attempts, which
// goes on counting.
func (n *Network) Refuse(err *error) (asked *int) {
	open := n.open
	asked = new(int)
	n.open = func(ns int) rules { return refusing{open(ns), err, asked} }
	return asked
}

// Refusals is what ruleset returns when the kernel answers the messages of a transaction with these errors.
func Refusals(list ...error) error {
	var all error
	for _, err := range list {
		all = errors.Join(all, err)
	}
	return fmt.Errorf("set the rules: %w", refusals{fmt.Errorf("conn.Receive: %w", all)})
}

// SessionSpace is the name of the network namespace of session networks.
func (n *Network) SessionSpace() string { return n.spaceName() }
