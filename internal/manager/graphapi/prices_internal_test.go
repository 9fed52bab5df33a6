package graphapi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/graphapi/gqlexec"
)

// unservedLists are always empty.
var unservedLists = []string{"endpoint_list", "endpoint_token_list", "endpoint_auto_scaling_rule_nodes", "model_cards", "networks",
	"container_registry_nodes", "myDeployments", "adminDeployments", "deploymentRevisionPresets", "runtimeVariants", "runtimeVariantPresets",
	"prometheusQueryPresets"}

// Every list of the root is counted with its items: a list without a price would cost as much as one item.
func TestListsHavePrices(t *testing.T) {
	t.Parallel()
	schema := gqlexec.NewExecutableSchema(gqlexec.Config{}).Schema()
	empty := map[string]bool{}
	for _, name := range unservedLists {
		empty[name] = true
		require.NotNil(t, schema.Query.Fields.ForName(name), name)
	}
	for _, f := range schema.Query.Fields {
		kind := f.Type.Name()
		lists := f.Type.Elem != nil || strings.HasSuffix(kind, "List") || strings.HasSuffix(kind, "Connection")
		if lists && !empty[f.Name] {
			require.Greater(t, prices["Queries."+f.Name].Items, 1, "%s is a list: give it a price in config.go", f.Name)
		}
	}
}
