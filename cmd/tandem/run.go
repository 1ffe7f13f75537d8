// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/service"
)

// runFlags are the flags of kube-proxy that make it run one command and exit.
type runFlags struct {
	configFlags
	writeTo  string
	cleanup  bool
	initOnly bool
}

func newRun() *cobra.Command {
	var flags runFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Program Services on this machine and keep them up to date",
		Long: `run takes every flag and the configuration file of kube-proxy, so that it can
replace it. 'tandem config explain' describes each setting, and which changes of the
file a running tandem applies.`,
		Example: `  tandem run --manifests ./services --hostname-override node-1
  tandem run --config /var/lib/kube-proxy/config.conf --hostname-override node-1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	fs := c.Flags()
	flags.register(c)
	fs.StringVar(&flags.writeTo, "write-config-to", "", "write the resulting configuration to this file, and exit")
	fs.BoolVar(&flags.cleanup, "cleanup", false, "remove everything that tandem programmed on this machine, and exit")
	fs.BoolVar(&flags.initOnly, "init-only", false, "set the system parameters that need full root privileges, and exit; after that CAP_NET_ADMIN is enough; on Windows also make C:\\ProgramData\\Tandem, and close it to ordinary users")
	groupedHelp(c)
	return c
}

func (f *runFlags) run(cmd *cobra.Command) error {
	once := f.writeTo != "" || f.cleanup || f.initOnly
	switch {
	case once:
		return f.once(cmd)
	case f.asService():
		return service.Serve(cmd.Context(), service.Program{Work: f.work, Code: exitCode})
	}
	return f.work(cmd.Context(), cmd.ErrOrStderr(), func() {})
}

// once does the one action of a flag.
func (f *runFlags) once(cmd *cobra.Command) error {
	c, notes, err := f.config()
	if err != nil {
		return err
	}
	log := newLog(cmd.ErrOrStderr(), c)
	log.notes(notes)
	switch {
	case f.writeTo != "":
		return writeConfig(f.writeTo, c)
	case f.cleanup:
		return cleanupLocked(cmd, c, &output{form: formTable})
	}
	if err := errors.Join(platform.Prepare(c, log.Logger), service.CreateFolders()); err != nil {
		return fmt.Errorf("--init-only: %w", err)
	}
	return nil
}

// asService reports whether flags or file select a service. It comes first, so that
// mistakes in a service's configuration go to its log.
func (f *runFlags) asService() bool {
	_ = f.read()
	c, _ := f.build(f.text)
	return c.Windows.Service
}

// work runs the proxy.
func (f *runFlags) work(ctx context.Context, out io.Writer, ready func()) error {
	c, notes, err := f.config(needSource, f.needTrusted)
	if err != nil {
		return err
	}
	log := newLog(out, c)
	log.Info("starting", "version", versionText(), "node", c.NodeName, "source", c.Source(), "config", f.file, "differences", differencesPage)
	log.notes(notes)
	_ = platform.Prepare(c, log.Logger) // logged; Services are served without it
	return f.serve(ctx, c, log, ready)
}

// serve runs the proxy, and follows its configuration file.
func (f *runFlags) serve(ctx context.Context, c *config.Config, log *logger, ready func()) error {
	p, err := platform.Open(ctx, c, versionText(), log.Logger)
	if err != nil && ctx.Err() != nil { // not a failure, on which a service manager would restart it
		log.Info("stopped during start", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	p.Verbosity = log.setVerbosity
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	if f.file != "" {
		r := reloader{flags: &f.configFlags, running: c, proxy: p, log: log}
		beside.Go(func() { file.Watch(ctx, f.file, f.text, log.Logger, r.changed) })
	}
	beside.Go(func() {
		if p.Ready(ctx) {
			ready()
		}
	})
	err = p.Run(ctx)
	stop()
	beside.Wait()
	if err == nil {
		log.Info("stopped; Services stay programmed")
	}
	return err
}

// needSource is what run needs: where Services come from. In a pod that is its
// cluster.
func needSource(c *config.Config) []config.Finding {
	if c.Manifests != "" || c.API.Kubeconfig != "" || c.API.Server != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return nil
	}
	return []config.Finding{{
		Name: "--manifests",
		Text: "required outside a pod, unless --kubeconfig or --master names an API server: a folder or file of manifests",
	}}
}

// writeConfig replaces a file only when all of the new one is on the disk. Into what is
// no regular file, as /dev/stdout, it writes.
func writeConfig(path string, c *config.Config) error {
	to := path + ".new"
	if s, err := os.Lstat(path); err == nil && !s.Mode().IsRegular() {
		to = path
	}
	err := writeDown(to, file.Render(c, false))
	switch {
	case to == path:
	case err == nil:
		err = os.Rename(to, path)
	default:
		_ = os.Remove(to)
	}
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

func writeDown(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if s, failed := f.Stat(); failed == nil && s.Mode().IsRegular() { // others have nothing to sync
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.Close())
}
