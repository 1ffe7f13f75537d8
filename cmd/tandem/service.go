// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/installers/openrc"
	"github.com/tandem-proxy/tandem/installers/systemd"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/service"
)

func newInstall() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use:   "install [flags of run]",
		Short: "Install tandem as a service of this system: a systemd unit, a service of OpenRC, or a Windows service",
		Long: `install creates a service that starts tandem with these flags when the system boots.
The flags are checked first: if one is invalid, or the service could not read a file that
it needs, nothing is changed. Under systemd it reads files as root without the right to
override permissions: keep them in /etc/tandem, not in a home folder. tandem start
starts the service now.`,
		Example: "  tandem install --config /etc/tandem/config.yaml\n  tandem start",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := platform.CheckNode(); err != nil {
				return err
			}
			_, notes, err := flags.config(needSource, flags.needHere)
			if err != nil {
				return err
			}
			printNotes(cmd, notes)
			args := append([]string{"run"}, given(cmd.Flags())...)
			spec := service.Spec{
				Arguments: args,
				Unit:      func(program string) string { return systemd.Unit(program, args, absolute(flags.file)) },
				OpenRC:    func(program string) string { return openrc.Script(program, args, absolute(flags.file)) },
			}
			done := waiting(cmd, "installing the service")
			err = service.Install(spec)
			done()
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "installed; start it with: tandem start")
			return nil
		},
	}
	flags.register(c)
	return c
}

// input is what a service reads.
type input struct {
	name, path string
	read       func() error
}

// inputs are what a service of a configuration reads: its file and the source of Services, of
// which manifests come first.
func (f *configFlags) inputs(c *config.Config) []input {
	all := []input{{"--config", f.file, func() error { _, err := file.Read(f.file); return err }}}
	if c.Manifests != "" {
		all = append(all, input{"--manifests", c.Manifests, func() error { return manifests.Reachable(c.Manifests) }})
	} else {
		all = append(all, input{"clientConnection.kubeconfig", c.API.Kubeconfig, func() error { _, err := watch.Connect(c.API); return err }})
	}
	if f.isStdin() {
		all = all[1:]
	}
	return slices.DeleteFunc(all, func(in input) bool { return in.path == "" })
}

// needHere is what a service needs of its machine: it can read its configuration and
// the source of Services.
func (f *configFlags) needHere(c *config.Config) (missing []config.Finding) {
	for _, in := range f.inputs(c) {
		err := in.read()
		if err == nil && systemd.Running() {
			err = systemd.Readable(in.path, in.read)
		}
		if err == nil {
			err = service.CheckInput(in.path)
		}
		if err != nil {
			missing = append(missing, config.Finding{Name: in.name, Text: err.Error()})
		}
	}
	return missing
}

// elsewhere notes what a configuration names and this machine does not have: it may be one for another machine.
func (f *configFlags) elsewhere(c *config.Config) (notes []config.Finding) {
	for _, in := range f.inputs(c) {
		if err := in.read(); errors.Is(err, fs.ErrNotExist) {
			notes = append(notes, config.Finding{Name: in.name, Text: in.path + " is not on this machine"})
		}
	}
	return notes
}

// needTrusted returns the inputs of a Windows service that others could have written. In a
// pod the kubelet writes them.
func (f *configFlags) needTrusted(c *config.Config) []config.Finding { return f.untrusted(c, nil) }

// needTrustedFiles is what a configuration needs that may not be filled in yet: files that
// are not there are not looked for.
func (f *configFlags) needTrustedFiles(c *config.Config) []config.Finding {
	return f.untrusted(c, fs.ErrNotExist)
}

// untrusted is needTrusted, but for errors of a kind; nil for all.
func (f *configFlags) untrusted(c *config.Config, but error) (wrong []config.Finding) {
	if !c.Windows.Service {
		return nil
	}
	for _, in := range f.inputs(c) {
		if err := service.CheckInput(in.path); err != nil && !errors.Is(err, but) {
			wrong = append(wrong, config.Finding{Name: in.name, Text: err.Error()})
		}
	}
	return wrong
}

// given returns the flags that were set, with absolute paths.
func given(fs *pflag.FlagSet) (args []string) {
	fs.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "config", "kubeconfig", "manifests", "record-hns":
			value = absolute(value)
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

// absolute returns the full path of a file: a service starts in another folder. The
// empty path stays empty.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil && path != "" {
		return full
	}
	return path
}

// newServiceVerbs are the verbs about an installed service that have neither arguments nor flags.
func newServiceVerbs() []*cobra.Command {
	return []*cobra.Command{
		newServiceVerb("uninstall", "Stop and remove the service; Services stay programmed (see cleanup)", "uninstalled", service.Uninstall),
		newServiceVerb("start", "Start the installed service", "started", service.Start),
		newServiceVerb("stop", "Stop the service; Services stay programmed", "stopped", service.Stop),
	}
}

func newServiceVerb(verb, short, done string, do func() error) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ended := waiting(cmd, cmd.CommandPath()+": waiting for the service manager")
			err := do()
			ended()
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), done)
			return nil
		},
	}
}
