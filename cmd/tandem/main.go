// SPDX-License-Identifier: Apache-2.0

// Command tandem is a Kubernetes Service proxy for Linux and Windows. Each verb
// is a file of its own; `tandem --help` lists them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/windows/hns"
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
	if calledKubeProxy(args[0]) {
		root.Version = kubeProxyVersion(versionText())
	}
	root.SetArgs(line)
	if len(line) > 0 && line[0] != "run" {
		collectLate()
	}
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

// verb adds the verb run where only flags are given, or where the program is called
// kube-proxy, so that it can replace it unchanged. --version, in whatever form,
// prints the version and no more, as in kube-proxy.
func verb(args []string) []string {
	rest := args[1:]
	if called(args[0]) == kubectlPlugin {
		return append([]string{"kubectl"}, rest...)
	}
	if !calledKubeProxy(args[0]) {
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

// calledKubeProxy reports whether the program has kube-proxy's name.
func calledKubeProxy(program string) bool { return called(program) == "kube-proxy" }

// called is the name that the program was called by.
func called(program string) string { return strings.TrimSuffix(filepath.Base(program), ".exe") }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tandem",
		Short: "A Kubernetes Service proxy for Linux and Windows",
		Long: `tandem implements Kubernetes Services on this machine: it programs Services and
EndpointSlices into the kernel, and keeps them up to date.`,
		Example: `  tandem demo                              # see it work, here and now
  tandem plan --manifests ./services       # what would be programmed, and why
  tandem run  --manifests ./services       # program it, and follow the folder`,
		Version:       versionText(),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Before cobra does it, whose error is not one of usage.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.Flags().Bool("version", false, "print the version") // cobra's own would offer -v, which is the verbosity
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newRun(), newPlan(), newStatus(), newServices(), newExplain(), newTrace(), newDrift(), newHistory(), newTop(), newSnapshot(), newReplay(), newUI(), newKubectl(),
		newSwitch(), newDoctor(), newTest(), newDemo(), newCleanup(), newConfig(), newHNS(hns.Local),
		newInstall(), newUninstall(), newStart(), newStop(), newVersion())
	for _, c := range append(root.Commands(), root) {
		if c.Args != nil {
			continue
		}
		c.Args = noArgs
		if c.HasSubCommands() {
			c.Args = knownVerb
		}
	}
	root.AddCommand(newDocs())
	return root
}
