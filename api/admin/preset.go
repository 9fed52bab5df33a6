package admin

import (
	"context"
	"encoding/json"

	"berth.dev/berth/api"
)

// CreatePreset makes a preset; sharedMemory and resourceGroup may be empty.
func CreatePreset(ctx context.Context, c *api.Client, name string, slots map[string]string, sharedMemory, resourceGroup string) error {
	const q = `mutation($name:String!,$input:CreateResourcePresetInput!){create_resource_preset(name:$name,props:$input){ok msg}}`
	text, err := json.Marshal(slots)
	if err != nil {
		return err
	}
	input := map[string]any{"resource_slots": string(text)}
	for k, v := range map[string]string{"shared_memory": sharedMemory, "scaling_group_name": resourceGroup} {
		if v != "" {
			input[k] = v
		}
	}
	return c.Mutate(ctx, "create_resource_preset", q, map[string]any{"name": name, "input": input})
}

// DeletePreset deletes the preset of that name.
func DeletePreset(ctx context.Context, c *api.Client, name string) error {
	const q = `mutation($name:String!){delete_resource_preset(name:$name){ok msg}}`
	return c.Mutate(ctx, "delete_resource_preset", q, map[string]any{"name": name})
}
