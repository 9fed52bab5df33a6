package cli

import (
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/app"
	"berth.dev/berth/internal/cli/console"
	"berth.dev/berth/internal/cli/folder"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/cli/login"
	"berth.dev/berth/internal/cli/notice"
	"berth.dev/berth/internal/cli/ssh"
	"berth.dev/berth/internal/cli/template"
	"berth.dev/berth/internal/cli/tenancy"
)

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the client verbs. build is shown to the manager as the user agent.
func Commands(build string) []*cobra.Command {
	return commands(frame.New(build))
}

func commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	all := []*cobra.Command{
		v.newRun(), v.newNotebook(), v.newSession(), v.newAgent(), v.newScheduler(), v.newIdle(), v.newPreset(), v.newImage(),
		v.newWhoami(),
	}
	all = append(all, folder.Commands(f)...)
	all = append(all, app.Commands(f)...)
	all = append(all, template.Commands(f)...)
	all = append(all, ssh.Commands(f, os.Executable)...)
	all = append(all, console.Commands(f)...)
	all = append(all, login.Commands(f)...)
	all = append(all, tenancy.Commands(f)...)
	all = append(all, notice.Commands(f)...)
	for _, c := range all {
		f.Flags(c)
	}
	return all
}
