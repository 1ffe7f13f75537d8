// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/ui"
)

func newUI() *cobra.Command {
	var from snapshotFlag
	var address string
	c := &cobra.Command{
		Use:   "ui --snapshot FILE",
		Short: "Serve pages about a snapshot; a running tandem serves its own at /ui",
		Long: `ui serves pages on this machine about the Services, endpoints and changes of a
snapshot, until interrupted. Those of the running tandem are at /ui of its metrics
address, for this machine alone: http://127.0.0.1:10249/ui.`,
		Example: "  tandem ui --snapshot node-1.snapshot",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !at.Addr().IsLoopback() {
				return usageError{fmt.Errorf("--listen %s: must be an address of loopback with a port", address)}
			}
			file, err := from.read(cmd)
			if err != nil {
				return err
			}
			if file == nil {
				return usageError{errors.New("--snapshot is required; the pages of the running tandem are at /ui of its metrics address")}
			}
			r := file.Resolve()
			in := &ui.Input{Status: file.Status, Host: r.Host, Services: r.Services, Suspects: file.Suspects, History: file.History, Snapshot: true}
			return serveUI(cmd, at, ui.Handler(func(context.Context) (*ui.Input, error) { return in, nil }))
		},
	}
	from.register(c)
	c.Flags().StringVar(&address, "listen", "127.0.0.1:0", "where to serve it; port 0 chooses one")
	return c
}

// serveUI serves pages until the command is interrupted.
func serveUI(cmd *cobra.Command, at netip.AddrPort, pages http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", at.String())
	if err != nil {
		return err
	}
	server := http.Server{
		Handler: health.RejectRebinding(pages), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(cmd.Context(), func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s/ui\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
