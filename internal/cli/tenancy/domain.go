package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newDomain() *cobra.Command {
	return frame.Group("domain", "Share the cluster between organisations",
		"Make domains, change them, and close them. A domain has users and projects of its own and may have totals that all its sessions\n"+
			"together never exceed. Superadmins do so; everybody sees their own domain.",
		a.newDomainCreate(), a.newDomainList(), a.newDomainInfo(), a.newDomainSet(), a.newDomainRemove(), a.newPurge("domain"))
}

// shareOptions are what can be set of a domain and of a project alike.
type shareOptions struct {
	description, integration string
	slots, hosts             []string
	active                   bool
}

func (o *shareOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.description, "description", "", "a note")
	f.StringVar(&o.integration, "integration-id", "", "what another system calls it")
	f.StringArrayVarP(&o.slots, "total", "t", nil, "most of a slot that all its sessions hold together, such as cpu=16 or mem=64g\n"+
		"(repeatable; replaces all; \"\" for no limits)")
	f.StringArrayVar(&o.hosts, "folder-host", nil,
		"HOST=PERMISSION,... that it may use folder hosts for (repeatable; replaces all; \"\" for none)")
}

// change is what the flags that were given set.
func (o *shareOptions) change(f *pflag.FlagSet) (map[string]any, error) {
	out := map[string]any{}
	for flag, field := range map[string]struct {
		name  string
		value any
	}{"description": {"description", o.description}, "integration-id": {"integration_id", o.integration}, "active": {"is_active", o.active}} {
		if f.Changed(flag) {
			out[field.name] = field.value
		}
	}
	if f.Changed("total") {
		slots, err := pairs("--total", o.slots)
		if err != nil {
			return nil, err
		}
		out["total_resource_slots"] = jsonText(slots)
	}
	if f.Changed("folder-host") {
		given, err := pairs("--folder-host", o.hosts)
		if err != nil {
			return nil, err
		}
		hosts := map[string][]string{}
		for host, list := range given {
			hosts[host] = strings.Split(list, ",")
		}
		out["allowed_vfolder_hosts"] = jsonText(hosts)
	}
	return out, nil
}

func jsonText(v any) string {
	b, _ := json.Marshal(v) // maps of texts always encode
	return string(b)
}

// pairs reads NAME=VALUE; an empty text alone is none.
func pairs(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if text == "" && len(list) == 1 {
			break
		}
		if !ok || name == "" || value == "" {
			return nil, frame.Usage(fmt.Errorf("%s: %q is not NAME=VALUE", flag, text))
		}
		out[name] = value
	}
	return out, nil
}

// limits says in a line what a text of a JSON object of amounts says.
func limits(text string) string {
	slots := map[string]string{}
	if json.Unmarshal([]byte(text), &slots) != nil || len(slots) == 0 {
		return "no limit"
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		out = append(out, name+"="+slots[name])
	}
	return strings.Join(out, " ")
}

// hostLines says which permissions there are on which hosts.
func hostLines(text string) string {
	hosts := map[string][]string{}
	if json.Unmarshal([]byte(text), &hosts) != nil || len(hosts) == 0 {
		return "none"
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		out = append(out, name+": "+strings.Join(hosts[name], " "))
	}
	return strings.Join(out, "; ")
}

func activity(active bool) string {
	if active {
		return "active"
	}
	return "not active"
}

func nothingToChange(cmd *cobra.Command) error {
	return frame.Usage(errors.New("nothing is said that should change; " + strconv.Quote(cmd.CommandPath()+" --help") + " lists the flags"))
}

// registries adds the flag of registries to a change.
func registriesOf(cmd *cobra.Command, registries []string, change map[string]any) {
	if !cmd.Flags().Changed("registry") {
		return
	}
	change["allowed_docker_registries"] = slices.DeleteFunc(append([]string{}, registries...), func(r string) bool { return r == "" })
}

const registryHelp = "registry whose images its sessions may run (repeatable; replaces all; \"\" for none but local images)"

func (a *verbs) newDomainCreate() *cobra.Command {
	o := &shareOptions{}
	var registries []string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a domain",
		Long: "Make a domain. It is empty: make projects and users in it, and associate resource groups with it.",
		Example: "  berth domain create physics --description 'Department of Physics' --total cpu=64 --total mem=256g\n" +
			"  berth domain create guests --folder-host local:volume1=mount-in-session,upload-file,download-file",
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change, err := o.change(cmd.Flags())
			if err != nil {
				return err
			}
			registriesOf(cmd, registries, change)
			if err := admin.CreateDomain(ctx, c, args[0], change); err != nil {
				return err
			}
			frame.Say(cmd, "domain %s is there", args[0])
			return nil
		}),
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringArrayVar(&registries, "registry", nil, registryHelp)
	return cmd
}

func (a *verbs) newDomainList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List domains",
		Long:    "List the domains that you may see: your own, all for superadmins and monitors.",
		Example: "  berth domain list",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := admin.Domains(ctx, c)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all)
			}
			t := frame.Table{Titles: []string{"NAME", "STATUS", "TOTAL", "DESCRIPTION"}}
			for _, d := range all {
				t.Rows = append(t.Rows, []string{d.Name, activity(d.Active), limits(d.Slots), d.Description})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newDomainInfo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "info [NAME]", Short: "Show a domain",
		Long:    "Show what is known of a domain; without a name, your own.",
		Example: "  berth domain info physics",
		Args:    frame.Args(cobra.MaximumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			d, err := admin.GetDomain(ctx, c, strings.Join(args, ""))
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), d)
			}
			t := frame.Table{Titles: []string{"WHAT", "VALUE"}, Rows: [][]string{
				{"name", d.Name}, {"description", d.Description}, {"status", activity(d.Active)}, {"total", limits(d.Slots)},
				{"folder hosts", hostLines(d.Hosts)}, {"registries", strings.Join(d.Registries, ", ")}, {"integration id", d.IntegrationID},
				{"since", d.CreatedAt},
			}}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newDomainSet() *cobra.Command {
	o := &shareOptions{}
	var registries []string
	name := ""
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Change a domain",
		Long: "Change what the flags name. Lower totals end no session; waiting ones meet them at once. --active=false is what \"rm\" does.\n" +
			"A domain that somebody or something belongs to keeps its name.",
		Example: "  berth domain set physics --total cpu=128 --total mem=512g\n  berth domain set physics --active=true",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change, err := o.change(cmd.Flags())
			if err != nil {
				return err
			}
			registriesOf(cmd, registries, change)
			if name != "" {
				change["name"] = name
			}
			if len(change) == 0 {
				return nothingToChange(cmd)
			}
			if err := admin.ModifyDomain(ctx, c, args[0], change); err != nil {
				return err
			}
			frame.Say(cmd, "domain %s is changed", args[0])
			return nil
		}),
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&o.active, "active", true, "whether its users are let in")
	cmd.Flags().StringArrayVar(&registries, "registry", nil, registryHelp)
	cmd.Flags().StringVar(&name, "name", "", "another name")
	return cmd
}

func (a *verbs) newDomainRemove() *cobra.Command {
	dry, asJSON := false, false
	cmd := &cobra.Command{
		Use: "rm NAME", Short: "Close a domain",
		Long: "Close a domain: its users are let in nowhere, their connections, apps and tokens end within a second, and nothing that waits\n" +
			"starts. Sessions run on and everything stays. \"set --active=true\" undoes it. --dry-run says before what becomes of what it has.",
		Example: "  berth domain rm physics --dry-run\n  berth domain rm physics",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if done, err := a.previewed(ctx, cmd, c, "domain", args[0], dry, asJSON); done {
				return err
			}
			if err := admin.DeleteDomain(ctx, c, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "domain %s is closed; what its users have stays", args[0])
			return nil
		}),
	}
	return previewFlags(cmd, &dry, &asJSON)
}
