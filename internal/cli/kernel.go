package cli

import "github.com/spf13/cobra"

// kernelFlag adds the flag that chooses a kernel of a session with several.
func kernelFlag(cmd *cobra.Command, kernel *string) {
	cmd.Flags().StringVar(kernel, "kernel", "", "kernel of a session with several, such as sub1 (default: the main one)")
}

// inKernel is the reference of a kernel, wherever the API takes that of a session to reach its programs and files.
func inKernel(session, kernel string) string {
	if kernel == "" {
		return session
	}
	return session + ":" + kernel
}
