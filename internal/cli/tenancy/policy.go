package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newPolicy() *cobra.Command {
	return frame.Group("policy", "What keypairs, users and projects may have",
		"Make, change and delete resource policies: of keypairs (sessions and slots), of users and of projects (folders, images, networks).",
		a.newPolicyList(), a.newPolicyInfo(), a.newPolicyWrite(true), a.newPolicyWrite(false), a.newPolicyRemove())
}

func kindFlag(cmd *cobra.Command, kind *string) {
	cmd.Flags().StringVar(kind, "kind", string(admin.OfKeypairs), "whom it limits: keypair, user or project")
}

func (a *verbs) newPolicyList() *cobra.Command {
	var asJSON bool
	var kind string
	cmd := &cobra.Command{
		Use: "list", Short: "List resource policies",
		Long:    "List the policies that you may see: those that limit you, all for administrators.",
		Example: "  berth policy list --kind user",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := admin.Policies(ctx, c, admin.PolicyKind(kind))
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all)
			}
			t := frame.Table{Titles: []string{"POLICY", "LIMITS"}}
			for _, p := range all {
				t.Rows = append(t.Rows, []string{p.Name(), policyWords(p)})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	kindFlag(cmd, &kind)
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// policyWords are the limits that a policy sets.
func policyWords(p admin.Policy) string {
	var out []string
	for name, v := range p {
		if name == "name" || name == "created_at" || v == nil || v == "{}" {
			continue
		}
		out = append(out, fmt.Sprintf("%s=%v", name, v))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// newPolicyWrite makes create and set.
func (a *verbs) newPolicyWrite(create bool) *cobra.Command {
	var kind string
	var slots, waitingSlots []string
	numbers := map[string]*int64{}
	unspecified := ""
	use, short, example := "set POLICY", "Change a resource policy", "  berth policy set small --max-sessions 2 -r cpu=4 -r mem=8g"
	if create {
		use, short = "create POLICY", "Make a resource policy"
		example = "  berth policy create small --max-sessions 2 -r cpu=4 -r mem=8g\n  berth policy create students --kind user --max-folders 10"
	}
	flags := []struct{ flag, field, words string }{
		{"max-sessions", "max_concurrent_sessions", "live sessions together; 0 is no limit"},
		{"max-sftp-sessions", "max_concurrent_sftp_sessions", "private sessions together; 0 is no limit"},
		{"max-containers", "max_containers_per_session", "containers of one session"},
		{"max-waiting", "max_pending_session_count", "sessions that wait together; -1 is no limit"},
		{"max-priority", "max_priority", "highest priority; -1 is none named"},
		{"max-life", "max_session_lifetime", "seconds of a session's life; 0 is no limit"},
		{"idle-timeout", "idle_timeout", "seconds without use; 0 is no limit"},
		{"max-folders", "max_vfolder_count", "folders (users, projects); 0 is no limit"},
		{"max-folder-bytes", "max_quota_scope_size", "bytes of folders on one host (users, projects); -1 is no limit"},
		{"max-images", "max_customized_image_count", "own images (users)"},
		{"max-logins", "max_concurrent_logins", "logins together (users); 0 is as the cluster's configuration says"},
		{"max-replicas", "max_session_count_per_model_session", "replicas of one endpoint (users)"},
		{"max-networks", "max_network_count", "networks (projects)"},
	}
	cmd := &cobra.Command{
		Use: use, Short: short,
		Long:    short + ". Sessions, folders and images that are there stay; what is new meets the new limits.",
		Example: example,
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change := admin.Policy{}
			if create && admin.PolicyKind(kind) == admin.OfKeypairs { // what the wire asks for
				change = admin.Policy{"default_for_unspecified": "UNLIMITED", "max_concurrent_sessions": 30, "max_containers_per_session": 1,
					"idle_timeout": 3600}
			}
			for _, f := range flags {
				if cmd.Flags().Changed(f.flag) {
					change[f.field] = *numbers[f.flag]
				}
			}
			if cmd.Flags().Changed("unlisted") {
				change["default_for_unspecified"] = strings.ToUpper(unspecified)
			}
			for flag, s := range map[string]struct {
				field string
				from  []string
			}{"resources": {"total_resource_slots", slots}, "waiting-resources": {"max_pending_session_resource_slots", waitingSlots}} {
				if !cmd.Flags().Changed(flag) {
					continue
				}
				text, err := slotsText(s.from)
				if err != nil {
					return err
				}
				change[s.field] = text
			}
			if len(change) == 0 && !create {
				return frame.Usage(errors.New("nothing is said that should change; " +
					strconv.Quote(cmd.CommandPath()+" --help") + " lists the flags"))
			}
			if err := admin.SetPolicy(ctx, c, admin.PolicyKind(kind), args[0], create, change); err != nil {
				return err
			}
			frame.Say(cmd, "policy %s of %ss is set", args[0], kind)
			return nil
		}),
	}
	kindFlag(cmd, &kind)
	for _, f := range flags {
		numbers[f.flag] = cmd.Flags().Int64(f.flag, 0, f.words)
	}
	cmd.Flags().StringArrayVarP(&slots, "resources", "r", nil,
		"slots of live sessions together, such as cpu=4 (repeatable; replaces all; \"\" for no limit)")
	cmd.Flags().StringArrayVar(&waitingSlots, "waiting-resources", nil, "slots of waiting sessions together (repeatable; replaces all)")
	cmd.Flags().StringVar(&unspecified, "unlisted", "unlimited", "slots that are not listed: limited (none) or unlimited")
	return cmd
}

// slotsText is what the wire takes for slots.
func slotsText(of []string) (string, error) {
	slots := map[string]string{}
	for _, one := range of {
		if one == "" {
			continue
		}
		slot, amount, found := strings.Cut(one, "=")
		if !found || slot == "" || amount == "" {
			return "", frame.Usage(fmt.Errorf("%q is no slot with an amount; write for example cpu=4", one))
		}
		slots[slot] = amount
	}
	text, err := json.Marshal(slots)
	return string(text), err
}

func (a *verbs) newPolicyRemove() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use: "rm POLICY", Short: "Delete a resource policy",
		Long:    "Delete a policy that nobody has. One that is in use stays, and the answer says who uses it.",
		Example: "  berth policy rm small",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := admin.DeletePolicy(ctx, c, admin.PolicyKind(kind), args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "policy %s is gone", args[0])
			return nil
		}),
	}
	kindFlag(cmd, &kind)
	return cmd
}
