package admin

import (
	"context"
	"net/url"

	"berth.dev/berth/api"
)

// Why tells how it is decided whether a user may do something with an object.
type Why struct {
	User    string `json:"user"`
	Action  string `json:"action"`
	Object  string `json:"object"`
	Allowed bool   `json:"allowed"`
	// Because are the conditions that hold, Needs all of those of which one must hold.
	Because []string `json:"because"`
	Needs   []string `json:"needs"`
	// ReadsOnly says that the user is a monitor, Inactive that they are let in nowhere.
	ReadsOnly bool `json:"reads_only"`
	Inactive  bool `json:"inactive"`
}

// GetWhy asks whether a user ("" is the caller) may do something with an object, such as user:EMAIL or project:NAME.
func GetWhy(ctx context.Context, c *api.Client, user, action, object string) (Why, error) {
	var out Why
	err := c.Get(ctx, "/auth/why", url.Values{"user": {user}, "action": {action}, "object": {object}}, &out)
	return out, err
}
