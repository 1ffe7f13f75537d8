// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

// made tests with generated backends.
func (f *connectivityFlags) made(cmd *cobra.Command, o connectivity.Options) error {
	return f.withRig(cmd, o, func(ctx context.Context, r *connectivity.Rig) error {
		done := waiting(cmd, "testing connectivity")
		report, err := r.Test(ctx)
		done()
		if err != nil {
			return err
		}
		return f.print(cmd, report)
	})
}

// made tests with made backends.
func (f *disruptFlags) made(cmd *cobra.Command, o connectivity.Options) error {
	return f.withRig(cmd, o, func(ctx context.Context, r *connectivity.Rig) error {
		done := waiting(cmd, "connecting while the proxy is disrupted")
		result, err := r.Disrupt(ctx, f.load)
		done()
		if err != nil {
			return err
		}
		return f.print(cmd, result)
	})
}

// withRig makes a rig for use, in a user namespace where that is needed, and removes it.
func (f *rigFlags) withRig(cmd *cobra.Command, o connectivity.Options, use func(context.Context, *connectivity.Rig) error) (err error) {
	if denied := netns.Available(); denied != nil {
		if f.inside || f.folder != "" {
			return denied
		}
		return inUserNamespace(cmd)
	}
	if o.Program, err = os.Executable(); err != nil {
		return err
	}
	r, err := connectivity.Open(cmd.Context(), o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return use(cmd.Context(), r)
}

// noUserNamespaceError is why there is no user namespace here.
type noUserNamespaceError struct{ error }

// childPatience is how long a child in a user namespace may take to end after a signal: it removes networks and stops proxies.
const childPatience = 20 * time.Second

// inUserNamespace runs the same command again as root of a user namespace, and has its
// exit code. It prints errors itself. Whatever becomes of it, its folders go with it.
func inUserNamespace(cmd *cobra.Command) error {
	folder, err := os.MkdirTemp("", "tandem-"+cmd.Name()+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	verb := slices.Index(os.Args, cmd.Name()) + 1
	child := exec.CommandContext(cmd.Context(), "/proc/self/exe", slices.Concat(os.Args[1:verb], []string{"--inside"}, os.Args[verb:])...)
	child.Env = append(os.Environ(), "TMPDIR="+folder, "XDG_RUNTIME_DIR="+folder)
	child.Stdout, child.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.SysProcAttr = netns.UserNamespace()
	child.Cancel = func() error { return child.Process.Signal(os.Interrupt) }
	child.WaitDelay = childPatience
	if err := child.Start(); err != nil {
		return noUserNamespaceError{fmt.Errorf("requires root or a user namespace: %w", netns.Advise(err))}
	}
	err = child.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	err = fmt.Errorf("in a user namespace: %w", err)
	switch exit.ExitCode() {
	case exitDiffers:
		return differsError(err.Error())
	case exitUsage:
		return usageError{err}
	}
	return err
}
