// Command tandem is a Kubernetes Service proxy for Linux and Windows. Each verb
// is a file of its own; `tandem --help` lists them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// The exit codes, the same for every verb.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitPending = 3 // there are differences
)

func main() {
	platform.Harden()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// run is the whole program: arguments in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	line := verb(args)
	root.SetArgs(line)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if errors.As(err, new(*pflag.NotExistError)) {
			err = cmp.Or(unknownFlags(c.Flags(), line), err)
			if c == root { // the verb is unknown then
				err = cmp.Or(knownVerb(root, line[:1]), err)
			}
		}
		return usageError{err}
	})
	root.SetOut(stdout)
	root.SetErr(stderr)
	reached, err := root.ExecuteContextC(ctx)
	code := exitCode(err)
	if code != exitOK {
		fmt.Fprintf(stderr, "tandem: %s\n", printable.Lines(err.Error()))
	}
	if code == exitUsage {
		fmt.Fprintf(stderr, "See '%s --help'.\n", reached.CommandPath())
	}
	return code
}

// exitCode is that of a verb that ended with err.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errPending):
		return exitPending
	case errors.As(err, new(usageError)):
		return exitUsage
	}
	return exitFailure
}

// verb adds the verb run where only flags are given, or where the program is called
// kube-proxy, so that it can replace it unchanged. --version, in whatever form,
// prints the version and no more, as in kube-proxy.
func verb(args []string) []string {
	name, rest := strings.TrimSuffix(filepath.Base(args[0]), ".exe"), args[1:]
	if name != "kube-proxy" {
		if len(rest) == 0 || !strings.HasPrefix(rest[0], "-") || rest[0] == "-h" || rest[0] == "--help" {
			return rest
		}
	}
	for _, a := range rest {
		if flag, value, _ := strings.Cut(a, "="); flag == "--version" && value != "false" {
			return []string{"--version"}
		}
	}
	return append([]string{"run"}, rest...)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tandem",
		Short: "A Kubernetes Service proxy for Linux and Windows",
		Long: `tandem implements Kubernetes Services on this machine: it programs Services and
EndpointSlices into the kernel, and keeps them up to date.

  tandem demo                              see it work, here and now
  tandem plan --manifests ./services       what would be programmed, and why
  tandem run  --manifests ./services       program it, and follow the folder`,
		Version:       versionText(),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newRun(), newPlan(), newStatus(), newSwitch(), newDoctor(), newDemo(), newCleanup(), newConfig(), newHNS(hns.Local),
		newInstall(), newUninstall(), newStart(), newStop(), newVersion())
	for _, c := range append(root.Commands(), root) {
		c.Args = noArgs
		if c.HasSubCommands() {
			c.Args = knownVerb
		}
	}
	root.AddCommand(newDocs())
	return root
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// knownVerb rejects what is no verb of a command, and suggests one of it or of its
// verbs.
func knownVerb(c *cobra.Command, args []string) error {
	i := slices.IndexFunc(args, func(a string) bool { return a != "" })
	if i < 0 {
		return nil
	}
	paths := map[string]string{} // by name; the shortest
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if path, known := paths[sub.Name()]; !sub.Hidden && (!known || len(sub.CommandPath()) < len(path)) {
				paths[sub.Name()] = sub.CommandPath()
			}
			add(sub)
		}
	}
	add(c)
	text := fmt.Sprintf("%s has no verb %q", c.CommandPath(), args[i])
	if near := config.Nearest(args[i], slices.Collect(maps.Keys(paths))); near != "" {
		text += ": do you mean '" + paths[near] + "'?"
	}
	return usageError{errors.New(text)}
}

// noArgs accepts empty arguments, as kube-proxy does: templates of manifests produce
// them.
func noArgs(c *cobra.Command, args []string) error {
	for _, a := range args {
		if a != "" {
			return usageError{fmt.Errorf("%s takes no argument: %q", c.CommandPath(), a)}
		}
	}
	return nil
}
