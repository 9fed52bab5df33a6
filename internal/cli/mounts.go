package cli

import (
	"errors"
	"fmt"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/cli/mountflag"
)

// setMounts puts the mounts of the command line into a request.
func setMounts(c *api.SessionConfig, list []string) error {
	for _, text := range list {
		m, err := mountflag.Parse(text)
		if err != nil {
			return frame.Usage(
				frame.Hint(
					fmt.Errorf("--mount %w", err), "write it as data, data:/home/work/data or data/sub:/mnt/data:ro; berth folder list",
				),
			)
		}
		for _, other := range c.Mounts {
			if other == m.Source {
				return frame.Usage(
					frame.Hint(
						errors.New("--mount names "+m.Source+" twice"), "mount it once, or different directories of it: %s/a and %s/b",
						m.Source, m.Source,
					),
				)
			}
		}
		c.Mounts = append(c.Mounts, m.Source)
		if m.Target != "" {
			if c.MountMap == nil {
				c.MountMap = map[string]string{}
			}
			c.MountMap[m.Source] = m.Target
		}
		if m.Permission != "" {
			if c.MountOptions == nil {
				c.MountOptions = map[string]api.MountOption{}
			}
			c.MountOptions[m.Source] = api.MountOption{Type: "bind", Permission: m.Permission}
		}
	}
	return nil
}
