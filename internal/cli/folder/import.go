package folder

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type objectOptions struct {
	app      *verbs
	endpoint string
	region   string
	detach   bool
}

// Where the keys of an object store come from; flags would show them to everybody on the machine.
const (
	envObjectAccess   = "AWS_ACCESS_KEY_ID"
	envObjectSecret   = "AWS_SECRET_ACCESS_KEY"
	envObjectRegion   = "AWS_REGION"
	envObjectEndpoint = "AWS_ENDPOINT_URL"
)

const aboutObjects = `The storage proxy copies; this machine may leave meanwhile. The keys are taken from the environment variables
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and kept only as long as the copying lasts. S3 and all that speaks like it will do.`

func (a *verbs) newFolderImport() *cobra.Command {
	o := &objectOptions{app: a}
	cmd := &cobra.Command{
		Use:     "import s3://BUCKET/PREFIX FOLDER[:PATH]",
		Short:   "Copy objects of an object store into a folder",
		Long:    "Copy objects of an S3 object store into a folder and print the id of the task.\n\n" + aboutObjects,
		Example: "  berth folder import s3://datasets/coco/ data:coco --endpoint-url https://minio.example.org",
		Args:    frame.Args(cobra.ExactArgs(2)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0], args[1], "import", c.ImportObjects)
		}),
	}
	o.flags(cmd)
	return cmd
}

func (a *verbs) newFolderExport() *cobra.Command {
	o := &objectOptions{app: a}
	cmd := &cobra.Command{
		Use:               "export FOLDER[:PATH] s3://BUCKET/PREFIX",
		Short:             "Copy files of a folder to an object store",
		Long:              "Copy files of a folder to an S3 object store and print the id of the task.\n\n" + aboutObjects,
		Example:           "  berth folder export results:run7 s3://archive/run7/ --endpoint-url https://minio.example.org",
		Args:              frame.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeFolders(":"),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[1], args[0], "export", c.ExportObjects)
		}),
	}
	o.flags(cmd)
	return cmd
}

func (o *objectOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint-url", "", "address of the object store (default: $AWS_ENDPOINT_URL, else that of Amazon S3)")
	f.StringVar(&o.region, "region", "", "region of the bucket (default: $AWS_REGION)")
	f.BoolVarP(&o.detach, "detach", "d", false, "do not wait for the end")
}

func (o *objectOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, object, folder, verb string,
	start func(context.Context, string, api.ObjectTransfer) (string, error),
) error {
	at, err := folderPlace(cmd, folder)
	if err != nil {
		return err
	}
	u, err := url.Parse(object)
	if err != nil || u.Scheme != "s3" || u.Host == "" {
		return frame.Usage(
			frame.Hint(fmt.Errorf("%q is no place in an object store", object), "write s3://BUCKET/PREFIX; %s --help", cmd.CommandPath()),
		)
	}
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	get := o.app.Getenv
	t := api.ObjectTransfer{Path: at.Clean(), Prefix: strings.TrimPrefix(u.Path, "/"), Store: api.ObjectStore{
		Endpoint: first(o.endpoint, get(envObjectEndpoint), "https://s3.amazonaws.com"), Region: first(o.region, get(envObjectRegion)),
		Bucket: u.Host, AccessKey: get(envObjectAccess), SecretKey: get(envObjectSecret),
	}}
	if t.Store.AccessKey == "" || t.Store.SecretKey == "" {
		return frame.Usage(
			frame.Hint(
				errors.New("the keys of the object store are missing"), "set %s and %s in the environment", envObjectAccess,
				envObjectSecret,
			),
		)
	}
	task, err := start(ctx, at.Folder, t)
	if err != nil {
		return folderHint(err)
	}
	if !o.detach && task != "" {
		if err := frame.FollowTask(ctx, cmd, c, task, verb+" "+folder); err != nil {
			return frame.Hint(err, "run the same command again; what is there already is left alone")
		}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), task)
	return err
}
