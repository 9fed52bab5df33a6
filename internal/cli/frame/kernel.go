package frame

import "github.com/spf13/cobra"

// KernelFlag adds the flag that chooses a kernel of a session with several.
func KernelFlag(cmd *cobra.Command, kernel *string) {
	cmd.Flags().StringVar(kernel, "kernel", "", "kernel of a session with several, such as sub1 (default: the main one)")
}

// InKernel is the reference of a kernel, wherever the API takes that of a session to reach its programs, apps and files.
func InKernel(session, kernel string) string {
	if kernel == "" {
		return session
	}
	return session + ":" + kernel
}
