package api

import (
	"context"
	"net/http"
)

// Preset is a named amount of resources.
type Preset struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	Slots         map[string]string `json:"resource_slots"`
	SharedMemory  *string           `json:"shared_memory"`                // bytes
	ResourceGroup string            `json:"scaling_group_name,omitempty"` // "" is every group
	Allocatable   *bool             `json:"allocatable,omitempty"`        // only from CheckPresets
}

// PresetCheck is what the caller could start now. Amounts are texts; "Infinity" is no limit, "NaN" is not shown.
type PresetCheck struct {
	KeypairLimits          map[string]string   `json:"keypair_limits"`
	KeypairUsing           map[string]string   `json:"keypair_using"`
	KeypairRemaining       map[string]string   `json:"keypair_remaining"`
	ProjectLimits          map[string]string   `json:"group_limits"`
	ProjectUsing           map[string]string   `json:"group_using"`
	ProjectRemaining       map[string]string   `json:"group_remaining"`
	ResourceGroupRemaining map[string]string   `json:"scaling_group_remaining"`
	ResourceGroups         map[string]GroupUse `json:"scaling_groups"`
	Presets                []Preset            `json:"presets"`
}

// GroupUse is what is in use in a resource group and what remains.
type GroupUse struct {
	Using     map[string]string `json:"using"`
	Remaining map[string]string `json:"remaining"`
}

// PresetCheckRequest is the body of POST /resource/check-presets; an empty resource group is every allowed one.
type PresetCheckRequest struct {
	Project       string `json:"group"`
	ResourceGroup string `json:"scaling_group,omitempty"`
}

// PresetList is the answer of GET /resource/presets.
type PresetList struct {
	Presets []Preset `json:"presets"`
}

// Presets lists what administrators offer.
func (c *Client) Presets(ctx context.Context) ([]Preset, error) {
	var out PresetList
	err := c.call(ctx, request{method: http.MethodGet, path: "/resource/presets"}, &out)
	return out.Presets, err
}

// CheckPresets tells which presets would fit now; resourceGroup "" is every allowed one.
func (c *Client) CheckPresets(ctx context.Context, project, resourceGroup string) (PresetCheck, error) {
	body := PresetCheckRequest{Project: project, ResourceGroup: resourceGroup}
	var out PresetCheck
	err := c.call(ctx, request{method: http.MethodPost, path: "/resource/check-presets", json: body}, &out)
	return out, err
}
