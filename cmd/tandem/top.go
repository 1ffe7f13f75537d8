// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/platform"
)

func newTop() *cobra.Command {
	var out output
	var only filter
	var again repeat
	var from snapshotFlag
	var limit int
	var endpoints, bytes bool
	c := &cobra.Command{
		Use:   "top",
		Short: "Show which Services get new connections, the busiest first",
		Long: `top shows the new connections of each Service: how many there were since its
frontends were programmed, and how many a second since the previous sample. They are
counted by the kernel, in mode nftables with --count-connections, in mode iptables until
a frontend's rules are written again, which is when it or one near it changes; and by
relays in mode userspace, there by Service port, not by frontend. Where none are counted
the exit code is 2. Services without any are left out. Of a snapshot it shows how many
there were.

--endpoints shows how many each endpoint got, in mode ipvs, and in mode nftables with
--count-endpoints; not those of Services with affinity there. --bytes shows the open
connections of each Service, and their bytes in both directions, from the connection
tracking of Linux: it counts them with the sysctl net.netfilter.nf_conntrack_acct=1. What
both cost is paid only while they are asked for.`,
		Example: "  tandem top\n  tandem top --endpoints --bytes\n  tandem top --watch\n  tandem top -n shop -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := only.check(); err != nil {
				return err
			}
			if file, err := from.read(cmd); err != nil || file != nil {
				return topFromSnapshot(cmd, &out, file, &only, limit, err)
			}
			r := platform.TopRequest{Filter: only.Filter, Frontends: out.form != formTable, Endpoints: endpoints, Bytes: bytes}
			before, err := askTop(cmd, r)
			if err != nil {
				return err
			}
			if !sleep.For(cmd.Context(), min(again.every, time.Second)) {
				return cmd.Context().Err()
			}
			return again.run(cmd.Context(), newScreen(cmd.OutOrStdout()), func(s *screen) error {
				now, err := askTop(cmd, r)
				if err != nil {
					return err
				}
				now.Since(before)
				before = now
				return out.printTo(s, topReport(now, limit))
			})
		},
	}
	out.register(c)
	only.register(c)
	again.register(c)
	from.register(c)
	c.MarkFlagsMutuallyExclusive("snapshot", "watch")
	c.Flags().BoolVar(&endpoints, "endpoints", false, "show the new connections of each endpoint")
	c.Flags().BoolVar(&bytes, "bytes", false, "show open connections and their bytes, as connection tracking counts them")
	c.MarkFlagsMutuallyExclusive("snapshot", "endpoints")
	c.MarkFlagsMutuallyExclusive("snapshot", "bytes")
	c.Flags().IntVar(&limit, "limit", 20, "how many Services to show; 0 for all")
	return c
}

// askTop asks the running tandem.
func askTop(cmd *cobra.Command, r platform.TopRequest) (status.Top, error) {
	t, err := platform.Top().Ask(cmd.Context(), r)
	if err == nil && t.NotCounted != "" {
		err = unsupportedError(t.NotCounted)
	}
	return t, err
}

// topFromSnapshot shows the counts in a snapshot.
func topFromSnapshot(cmd *cobra.Command, out *output, file *snapshot.File, only *filter, limit int, err error) error {
	switch {
	case err != nil:
		return err
	case file.Top == nil:
		return unsupportedError(status.NotCounted(string(file.Mode)))
	case file.Top.NotCounted != "":
		return errors.New(file.Top.NotCounted)
	}
	then := *file.Top
	then.Services = slices.DeleteFunc(then.Services, func(s status.TopService) bool { return !only.Match(s.Service, "") })
	return out.print(cmd, topReport(then, limit))
}

// topReport is so many of the Services; all with a limit of 0.
func topReport(t status.Top, limit int) report {
	if limit > 0 && len(t.Services) > limit {
		t.Services = t.Services[:limit]
	}
	return report{document: t, text: func(s *screen) error { writeTop(s, t); return nil }}
}

func writeTop(s *screen, top status.Top) {
	traffic := slices.ContainsFunc(top.Services, func(r status.TopService) bool { return r.Traffic != nil })
	endpoints := slices.ContainsFunc(top.Services, func(r status.TopService) bool { return len(r.Endpoints) > 0 })
	t := table{columns: []column{
		{name: "SERVICE"},
		{name: "FRONTEND", wide: true, keep: true},
		{name: "ENDPOINT", keep: true},
		{name: "PER SECOND", keep: true},
		{name: "NEW CONNECTIONS", keep: true},
		{name: "OPEN", keep: true},
		{name: "BYTES/S", keep: true},
		{name: "BYTES", keep: true},
	}}
	if !traffic {
		t.columns = t.columns[:5]
	}
	if !endpoints {
		t.columns = slices.Delete(t.columns, 2, 3)
	}
	add := func(service, frontend, endpoint, rate, n string, more ...string) {
		row := append([]string{service, frontend, endpoint, rate, n}, more...)
		if !endpoints {
			row = slices.Delete(row, 2, 3)
		}
		for len(row) < len(t.columns) {
			row = append(row, "")
		}
		t.add(row...)
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for _, row := range top.Services {
		var more []string
		if x := row.Traffic; x != nil {
			more = []string{number(x.Connections), fmt.Sprintf("%.0f", x.PerSecond), number(x.Bytes)}
		}
		add(row.Service, "", "", fmt.Sprintf("%.1f", row.PerSecond), number(row.New), more...)
		for _, f := range row.Frontends {
			if s.wide {
				add("", f.Address+"/"+f.Proto, "", "", number(f.New))
			}
		}
		for _, e := range row.Endpoints {
			add("", "", e.Address+"/"+e.Proto, "", number(e.New))
		}
	}
	s.table(t)
}
