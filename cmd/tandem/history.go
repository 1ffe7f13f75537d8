// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
)

func newHistory() *cobra.Command {
	var f history.Filter
	var out output
	var from snapshotFlag
	c := &cobra.Command{
		Use:   "history [NAMESPACE/NAME]",
		Short: "Show the last changes: what was received, what it rewrote, how long each stage took",
		Long: `history shows the last changes that reached the running tandem, oldest first: the
object and its resourceVersion; how old the change was when it arrived; how long it
queued, and how long it took to resolve, compile and write it; what was created (+),
replaced (~) and deleted (-) in the data plane; and what failed. Changes that were
applied together share a sync. The last ` + fmt.Sprint(history.Most) + ` changes are kept, in memory only.`,
		Example: "  tandem history\n  tandem history default/web\n  tandem history --failed -o json",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.Service, err = serviceArgument(args); err != nil {
				return err
			}
			if f.Limit < 0 {
				return usageError{fmt.Errorf("--limit %d: must not be negative", f.Limit)}
			}
			d, err := askHistory(cmd, &from, f)
			if err != nil {
				return err
			}
			return out.print(cmd, report{document: d, text: func(s *screen) error { writeHistory(s, d); return nil }})
		},
	}
	c.Flags().IntVar(&f.Limit, "limit", 50, "how many changes to show: the newest; 0 for all")
	c.Flags().BoolVar(&f.Failed, "failed", false, "only changes whose sync failed in part")
	out.register(c)
	from.register(c)
	return c
}

// askHistory asks the running tandem, or a snapshot of one.
func askHistory(cmd *cobra.Command, from *snapshotFlag, f history.Filter) (history.Document, error) {
	file, err := from.read(cmd)
	switch {
	case err != nil:
		return history.Document{}, err
	case file != nil:
		return file.History.Select(f), nil
	}
	return platform.History().Ask(cmd.Context(), f)
}

// writeHistory shows a history to people, one line a change.
func writeHistory(s *screen, d history.Document) {
	t := table{columns: []column{
		{name: "TIME", keep: true},
		{name: "CHANGE"},
		{name: "OBJECT"},
		{name: "VERSION", wide: true},
		{name: "AGE", keep: true},
		{name: "QUEUE", keep: true},
		{name: "RESOLVE", keep: true},
		{name: "COMPILE", keep: true},
		{name: "WRITE", keep: true},
		{name: "WROTE"},
	}}
	for i := range d.Entries {
		e := &d.Entries[i]
		row := []string{e.At.Format("15:04:05.000"), e.Kind + " " + e.Verb, cmp.Or(e.Subject(), "-"), "-", history.Short(e.Age)}
		if e.Version != 0 {
			row[3] = strconv.FormatUint(e.Version, 10)
		}
		for stage := range history.Stages {
			text := "-"
			if e.Sync != nil {
				text = history.Short(e.Sync.Stages.Of(stage))
			}
			row = append(row, text)
		}
		t.add(append(row, e.Wrote())...)
	}
	s.table(t)
	for i := range d.Entries {
		if sync := d.Entries[i].Sync; sync != nil && sync.Err != "" {
			s.printf("! sync %d: %s\n", sync.Number, printable.Text(sync.Err))
		}
	}
	s.printf("%d shown of %d since the start; the last %d are kept\n", len(d.Entries), d.Total, history.Most)
}
