package api

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
)

// Image is an image that sessions can be made of.
type Image struct {
	ID           string      `json:"id,omitempty"`
	Name         string      `json:"name"`
	Project      string      `json:"project"`
	Registry     string      `json:"registry"`
	Architecture string      `json:"architecture"`
	Tag          string      `json:"tag"`
	Digest       *string     `json:"digest"`
	SizeBytes    json.Number `json:"size_bytes"`
	Aliases      []string    `json:"aliases"`
	Labels       []KeyValue  `json:"labels,omitempty"`
}

// KeyValue is a label.
type KeyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// LocalRegistry is the registry of images that agents have without having pulled them;
// it is no part of their reference.
const LocalRegistry = "local"

// Reference is the canonical name of the image.
func (i Image) Reference() string {
	ref := i.Name + ":" + i.Tag
	if i.Project != "" && !strings.HasPrefix(ref, i.Project+"/") {
		ref = i.Project + "/" + ref
	}
	if i.Registry != "" && i.Registry != LocalRegistry {
		ref = i.Registry + "/" + ref
	}
	return ref
}

var imagesQuery = `query{images{` + selection[Image]() + `}}`

// Images lists all images with their labels.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	var out struct {
		Images []Image `json:"images"`
	}
	if err := c.GraphQL(ctx, imagesQuery, nil, &out); err != nil {
		return nil, err
	}
	if out.Images == nil {
		out.Images = []Image{}
	}
	return out.Images, nil
}

// FindImage finds an image by reference, name, name:tag or alias.
func (c *Client) FindImage(ctx context.Context, ref string) (Image, error) {
	all, err := c.Images(ctx)
	if err != nil {
		return Image{}, err
	}
	for _, i := range all {
		full := i.Reference()
		if ref == full || ref == strings.TrimSuffix(full, ":"+i.Tag) || ref == i.ID || slices.Contains(i.Aliases, ref) {
			return i, nil
		}
	}
	return Image{}, notFound("images", "image %s does not exist", ref)
}

// AliasImage gives an image a short name.
func (c *Client) AliasImage(ctx context.Context, alias, target string) error {
	const q = `mutation($alias:String!,$target:String!){alias_image(alias:$alias,target:$target){ok msg}}`
	return c.mutate(ctx, "alias_image", q, map[string]any{"alias": alias, "target": target})
}

// DealiasImage takes a short name away.
func (c *Client) DealiasImage(ctx context.Context, alias string) error {
	const q = `mutation($alias:String!){dealias_image(alias:$alias){ok msg}}`
	return c.mutate(ctx, "dealias_image", q, map[string]any{"alias": alias})
}
