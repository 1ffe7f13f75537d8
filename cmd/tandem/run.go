package main

import (
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/platform"
)

// gcPercent lets garbage grow to half of what lives before it is collected. A
// proxy at rest makes hardly any; what counts is the memory that a node gives.
const gcPercent = 30

func newRun() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Program Services on this machine and keep them right",
		Example: `  tandem run --manifests ./services --hostname-override node-1
  tandem run --manifests ./services --cluster-cidr 10.244.0.0/16`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.config()
			if err != nil {
				return err
			}
			log, err := newLog(cmd.ErrOrStderr(), c.LogLevel)
			if err != nil {
				return err
			}
			debug.SetGCPercent(gcPercent)
			log.Info("starting", "version", versionText(), "node", c.NodeName, "manifests", c.Manifests)
			p, err := platform.Open(cmd.Context(), c, versionText(), log)
			if err != nil {
				return err
			}
			if err := p.Run(cmd.Context()); err != nil {
				return err
			}
			log.Info("stopped; what is programmed stays")
			return nil
		},
	}
	flags.register(c.Flags())
	return c
}

func newLog(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level: %q is none of debug, info, warn, error", level)}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
