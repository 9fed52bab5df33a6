package admin

import (
	"context"
	"net/http"

	"berth.dev/berth/api"
)

// GetAnnouncement reads the text that all clients show.
func GetAnnouncement(ctx context.Context, c *api.Client) (api.Announcement, error) {
	var out api.Announcement
	err := c.Get(ctx, "/manager/announcement", nil, &out)
	return out, err
}

// SetAnnouncement announces a text; "" takes the announcement away.
func SetAnnouncement(ctx context.Context, c *api.Client, text string) error {
	return c.Do(ctx, http.MethodPost, "/manager/announcement", api.Announcement{Enabled: text != "", Message: text}, nil)
}
