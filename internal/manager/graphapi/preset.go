package graphapi

import (
	"context"
	"encoding/json"
	"strconv"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/resource"
)

func toPreset(p resource.Preset) *model.ResourcePreset {
	return &model.ResourcePreset{
		ID: &p.ID, Name: &p.Name, ResourceSlots: slotsText(p.Slots), SharedMemory: p.SharedMemory,
		ScalingGroupName: optional(p.ResourceGroup),
	}
}

func (q queries) ResourcePresets(ctx context.Context) ([]*model.ResourcePreset, error) {
	presets, err := q.resources.Presets(ctx, q.who(ctx))
	return convert(presets, toPreset), err
}

func (q queries) ResourcePreset(ctx context.Context, name string) (*model.ResourcePreset, error) {
	presets, err := q.resources.Presets(ctx, q.who(ctx))
	if err != nil {
		return nil, err
	}
	for _, p := range presets {
		if p.Name == name {
			return toPreset(p), nil
		}
	}
	return nil, nil
}

// slotsOf reads a JSON object of slot to amount, a text or a number.
func slotsOf(text *string) (map[string]string, error) {
	if text == nil {
		return nil, nil
	}
	var raw map[string]any
	if err := json.Unmarshal([]byte(*text), &raw); err != nil || raw == nil {
		return nil, fault.Invalidf("resource_slots is no JSON object").WithNext(`write it like {"cpu":"1","mem":"1g"}`)
	}
	out := make(map[string]string, len(raw))
	for slot, v := range raw {
		switch v := v.(type) {
		case string:
			out[slot] = v
		case float64:
			out[slot] = strconv.FormatFloat(v, 'f', -1, 64)
		case nil:
		default:
			return nil, fault.Invalidf("the amount of %.80q is neither a number nor a text", slot)
		}
	}
	return out, nil
}

func (m mutations) CreateResourcePreset(
	ctx context.Context, name string, props model.CreateResourcePresetInput,
) (*model.CreateResourcePresetReply, error) {
	slots, err := slotsOf(&props.ResourceSlots)
	var p resource.Preset
	if err == nil {
		p, err = m.resources.CreatePreset(
			ctx, m.who(ctx),
			resource.PresetInput{Name: &name, Slots: slots, SharedMemory: props.SharedMemory, ResourceGroup: props.ScalingGroupName},
		)
	}
	said, failed := reply(err)
	if failed != nil {
		return nil, failed
	}
	out := &model.CreateResourcePresetReply{Ok: said.Ok, Msg: said.Msg}
	if err == nil {
		out.ResourcePreset = toPreset(p)
	}
	return out, nil
}

// presetRef is the preset that a mutation names: by its id, else by its name.
func presetRef(id, name *string) (string, error) {
	switch {
	case id != nil && *id != "":
		return uuid("preset id", *id)
	case name != nil && *name != "":
		return *name, nil
	}
	return "", fault.Invalidf("no preset was named").WithNext("pass id or name")
}

func (m mutations) ModifyResourcePreset(
	ctx context.Context, id, name *string, props model.ModifyResourcePresetInput,
) (*model.MutationReply, error) {
	ref, err := presetRef(id, name)
	if err != nil {
		return reply(err)
	}
	slots, err := slotsOf(props.ResourceSlots)
	if err != nil {
		return reply(err)
	}
	_, err = m.resources.ModifyPreset(
		ctx, m.who(ctx), ref,
		resource.PresetInput{Name: props.Name, Slots: slots, SharedMemory: props.SharedMemory, ResourceGroup: props.ScalingGroupName},
	)
	return reply(err)
}

func (m mutations) DeleteResourcePreset(ctx context.Context, id, name *string) (*model.MutationReply, error) {
	ref, err := presetRef(id, name)
	if err != nil {
		return reply(err)
	}
	return reply(m.resources.DeletePreset(ctx, m.who(ctx), ref))
}
