package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/platform"
)

// runFlags are the flags of kube-proxy that make it do one thing and exit.
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
		Short: "Program Services on this machine and keep them right",
		Long: `run takes every flag and the configuration file of kube-proxy, so that it can take
its place. 'tandem config explain' says what each setting does, and which changes
of the file a running tandem takes over.`,
		Example: `  tandem run --manifests ./services --hostname-override node-1
  tandem run --config /var/lib/kube-proxy/config.conf --hostname-override node-1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	fs := c.Flags()
	flags.register(fs)
	fs.StringVar(&flags.writeTo, "write-config-to", "", "write the configuration that flags and file make to this file, and exit")
	fs.BoolVar(&flags.cleanup, "cleanup", false, "remove everything that tandem programmed on this machine, and exit")
	fs.BoolVar(&flags.initOnly, "init-only", false, "set what needs full root privileges, and exit; after that CAP_NET_ADMIN is enough")
	return c
}

func (f *runFlags) run(cmd *cobra.Command) error {
	var needs []need
	if f.writeTo == "" && !f.cleanup && !f.initOnly {
		needs = append(needs, needSource)
	}
	c, notes, err := f.config(needs...)
	if err != nil {
		return err
	}
	log := newLog(cmd.ErrOrStderr(), c)
	for _, n := range notes {
		log.Warn("configuration", "name", n.Name, "note", n.Text, "where", n.Where)
	}
	switch {
	case f.writeTo != "":
		return writeConfig(f.writeTo, c)
	case f.cleanup:
		return cleanupLocked(cmd)
	}
	platform.Prepare(c, log.Logger)
	if f.initOnly {
		return nil
	}
	return f.serve(cmd.Context(), c, log)
}

// serve runs the proxy, and follows its configuration file.
func (f *runFlags) serve(ctx context.Context, c *config.Config, log *logger) error {
	log.Info("starting", "version", versionText(), "node", c.NodeName, "source", c.Source(), "config", f.file)
	p, err := platform.Open(ctx, c, versionText(), log.Logger)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	if f.file != "" {
		r := reloader{flags: &f.configFlags, running: c, proxy: p, log: log}
		follower.Go(func() { file.Watch(ctx, f.file, f.text, log.Logger, r.changed) })
	}
	err = p.Run(ctx)
	stop()
	follower.Wait()
	if err == nil {
		log.Info("stopped; what is programmed stays")
	}
	return err
}

// needSource is what run needs: something that tells where Services come from.
// In a pod its cluster is found.
func needSource(c *config.Config) []config.Finding {
	if c.Manifests != "" || c.API.Kubeconfig != "" || c.API.Server != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return nil
	}
	return []config.Finding{{
		Name: "--manifests",
		Text: "name a folder of manifests, or an API server with --kubeconfig or --master: outside a pod of the cluster it is not found",
	}}
}

func writeConfig(path string, c *config.Config) error {
	if err := os.WriteFile(path, file.Render(c, false), 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}
