package api

import (
	"context"
	"encoding/json"
	"net/http"
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
	return c.Mutate(ctx, "alias_image", q, map[string]any{"alias": alias, "target": target})
}

// DealiasImage takes a short name away.
func (c *Client) DealiasImage(ctx context.Context, alias string) error {
	const q = `mutation($alias:String!){dealias_image(alias:$alias){ok msg}}`
	return c.Mutate(ctx, "dealias_image", q, map[string]any{"alias": alias})
}

// ForgetImage hides an image from new sessions; one that was made of a session is deleted.
func (c *Client) ForgetImage(ctx context.Context, id string) error {
	const q = `mutation($id:String!){forget_image_by_id(image_id:$id){ok msg}}`
	return c.Mutate(ctx, "forget_image_by_id", q, map[string]any{"id": id})
}

// UnknownImage is an image that an agent has and that sessions cannot use.
type UnknownImage struct {
	Agent        string `json:"agent"`
	Reference    string `json:"reference"`
	Architecture string `json:"architecture"`
	Digest       string `json:"digest"`
	SizeBytes    int64  `json:"size_bytes"`
	// CatalogueDigest is the content that the catalogue has under that reference; "" when it has none.
	CatalogueDigest string `json:"catalogue_digest"`
}

// UnknownImages is the answer of GET /resource/images/unknown.
type UnknownImages struct {
	Images []UnknownImage `json:"images"`
}

// UnknownImages lists what agents have and nobody imported, or imported with another content; for superadmins.
func (c *Client) UnknownImages(ctx context.Context) ([]UnknownImage, error) {
	var out UnknownImages
	err := c.call(ctx, request{method: http.MethodGet, path: "/resource/images/unknown"}, &out)
	return out.Images, err
}

// ImageImport is the body of POST /resource/images/import.
type ImageImport struct {
	Reference string `json:"reference"`
	Agent     string `json:"agent"`             // whose word about the image counts
	Digest    string `json:"digest,omitempty"`  // the only content that is taken
	Project   string `json:"project,omitempty"` // id of the project whose members may use it; "" is everybody
}

// ImportedImage is the answer of POST /resource/images/import.
type ImportedImage struct {
	ID        string `json:"id"`
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Scope     string `json:"scope"`
}

// ImportImage takes an image that an agent has into the catalogue; for superadmins.
func (c *Client) ImportImage(ctx context.Context, r ImageImport) (ImportedImage, error) {
	var out ImportedImage
	err := c.call(ctx, request{method: http.MethodPost, path: "/resource/images/import", json: r}, &out)
	return out, err
}
