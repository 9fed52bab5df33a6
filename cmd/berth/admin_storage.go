package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/platform"
)

func newStorageKey() *cobra.Command {
	var dirFlag, config, name, out string
	c := &cobra.Command{
		Use: "storage-key", Short: "Print the key of one storage proxy", Args: cobra.NoArgs,
		Long: "Print the key of the storage proxy of one name, for storage.secret or storage.secret_file of its hosts. It is\n" +
			"derived from manager.storage.secret and always the same. A proxy that has it instead of the managers' secret\n" +
			"cannot act for another one. When a storage proxy was taken over, replace the managers' secret and all keys.\n\n" +
			"It needs no account, only the right to read the state directory of a cluster, or with --config the\n" +
			"configuration of a manager.",
		Example: "  berth admin storage-key --name nas1 --config manager.toml --out nas1.key",
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings := platform.Settings{}
			var err error
			if config != "" {
				settings, _, err = platform.LoadSettings(config, platform.RoleManager, cmd.ErrOrStderr())
			} else {
				var dir platform.StateDir
				if dir, err = platform.FindStateDir(dirFlag); err == nil {
					settings.Manager.Storage.SecretFile = dir.Path(platform.StorageSecretFile)
				}
			}
			if err != nil {
				return err
			}
			key, err := settings.Manager.Storage.StorageKey(name)
			if err != nil {
				return err
			}
			if out != "" {
				return writeToken(out, key)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key)
			return err
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "state directory of the cluster (default: the one that is found)")
	c.Flags().StringVar(&config, "config", "", "configuration file of a manager, instead of a state directory")
	c.Flags().StringVar(&name, "name", "", "name of the storage proxy")
	c.Flags().StringVar(&out, "out", "", "write the key to a new file of mode 0600 instead")
	_ = c.MarkFlagRequired("name") // it fails for unknown flags only
	return c
}
