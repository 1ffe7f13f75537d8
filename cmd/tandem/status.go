// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/wire"
	"github.com/tandem-proxy/tandem/platform/service"
)

func newStatus() *cobra.Command {
	var address string
	var out output
	var only filter
	var again repeat
	var from snapshotFlag
	c := &cobra.Command{
		Use:     "status",
		Short:   "Show what the running tandem serves, what it rejected, and why",
		Example: "  tandem status\n  tandem status -n kube-system --state Partial,Failing\n  tandem status --watch\n  tandem status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := only.check(); err != nil {
				return err
			}
			return again.run(cmd.Context(), newScreen(cmd.OutOrStdout()), func(s *screen) error {
				doc, err := askStatus(cmd, &from, address, &only.Filter)
				if err != nil {
					return err
				}
				selectServices(&doc, &only)
				return out.printTo(s, report{document: doc, text: func(s *screen) error { writeStatus(s, doc); return nil }})
			})
		},
	}
	c.Flags().StringVar(&address, "address", config.Default().HTTPAddress, "where the running tandem serves its status")
	out.register(c)
	only.register(c, model.Programmed.String(), model.Partial.String(), status.Pending, model.Failing.String())
	again.register(c)
	from.register(c)
	c.MarkFlagsMutuallyExclusive("snapshot", "watch")
	return c
}

// askStatus asks the running tandem, or a snapshot of one.
func askStatus(cmd *cobra.Command, from *snapshotFlag, address string, only *status.Filter) (status.Document, error) {
	file, err := from.read(cmd)
	switch {
	case err != nil:
		return status.Document{}, err
	case file != nil:
		return file.Status, nil
	}
	return fetchStatus(cmd, address, only)
}

// selectServices leaves only the Services of a filter in a status, and, where one is
// set, only their problems.
func selectServices(d *status.Document, f *filter) {
	d.Services = slices.DeleteFunc(d.Services, func(s status.Service) bool { return !f.Match(s.Name, s.State) })
	if !f.All() {
		d.Problems = nil
	}
}

// writeStatus shows a status to people.
func writeStatus(s *screen, d status.Document) {
	health := "healthy"
	if !d.Healthy {
		health = "NOT healthy"
	}
	s.printf("tandem %s on %s: ", d.Version, d.Node)
	s.text.WriteString(s.paint(stateColor(health), health))
	s.printf(", mode %s, source %s\n", d.Mode, d.Source)
	if d.Fallback != "" {
		s.printf("  mode %s because %s\n", d.Mode, printable.Text(d.Fallback))
	}
	for _, r := range d.Reasons {
		s.printf("  because %s\n", printable.Text(r))
	}
	s.printf("%s, %s in the data plane; since the start %s, %s, %s repaired\n", printable.Count(len(d.Services), "Service"),
		printable.Count(d.Objects, "object"), printable.Count(d.Syncs, "sync"), printable.Count(d.Writes, "write"), printable.Count(d.Drift, "object"))
	writeInputs(s, &d)
	if len(d.Services) > 0 {
		s.printf("\n")
		s.table(servicesTable(d.Services))
		s.printf("\n")
	}
	for _, svc := range d.Services {
		for _, p := range svc.Problems {
			writeProblem(s, p, svc.Name)
		}
	}
	for _, p := range d.Problems {
		writeProblem(s, p, p.Object)
	}
}

// writeInputs prints how up to date the inputs are, and their totals.
func writeInputs(s *screen, d *status.Document) {
	if d.Hash != "" {
		s.printf("desired state %s", d.Hash)
		if d.SyncedAt != nil && !d.At.IsZero() {
			s.printf(", programmed %s ago", d.At.Sub(*d.SyncedAt).Round(time.Second))
		}
		s.printf("\n")
	}
	for _, in := range d.Inputs {
		s.printf("%s: up to date %.1f s ago", printable.Text(in.Name), in.Age)
		if in.Version != "" {
			s.printf(", resourceVersion %s, %s", printable.Text(in.Version), printable.Count(in.Objects, "object"))
		}
		if in.Err != "" {
			s.printf(": %s", printable.Text(in.Err))
		}
		s.printf("\n")
	}
}

func servicesTable(services []status.Service) table {
	t := table{columns: []column{
		{name: "SERVICE"},
		{name: "ADDRESS", keep: true},
		{name: "PORT", wide: true},
		{name: "KIND"},
		{name: "ENDPOINTS"},
		{name: "WHY"},
		{name: "STATE", keep: true, state: true},
		{name: "SOURCES"},
	}}
	for _, svc := range services {
		name, state := svc.Name, svc.State
		for _, f := range svc.Frontends {
			t.add(name, f.Address+"/"+f.Proto, f.Port, f.Kind, strconv.Itoa(f.Endpoints), f.Why, state, status.ShowSources(f.Sources))
			name, state = "", ""
		}
		if len(svc.Frontends) == 0 {
			t.add(name, "-", "-", "-", "-", "-", state, "-")
		}
	}
	return t
}

func writeProblem(s *screen, p status.Problem, object string) {
	where := ""
	if p.Where != "" {
		where = " (" + printable.Text(p.Where) + ")"
	}
	s.printf("! %s: %s%s\n", printable.Text(object), printable.Text(p.Detail), where)
}

// hint suggests why a tandem may not answer.
func hint() string {
	switch state, _ := service.Status(); state {
	case service.Stopped:
		return "the service is stopped: run tandem start"
	case service.Running:
		return "the service runs: does it have another --metrics-bind-address?"
	}
	return "is it running, and with this --metrics-bind-address?"
}

// fetchStatus fetches the status, with the Services of a filter.
func fetchStatus(cmd *cobra.Command, address string, only *status.Filter) (doc status.Document, err error) {
	query := url.Values{"state": only.States}
	for key, value := range map[string]string{"namespace": only.Namespace, "name": only.Name} {
		if value != "" {
			query.Set(key, value)
		}
	}
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, "http://"+address+"/status?"+query.Encode(), nil)
	if err != nil {
		return doc, usageError{fmt.Errorf("--address: %w", err)}
	}
	req.Header.Set("Accept", wire.Accept)
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}} // a watch would leave a connection behind each answer
	res, err := client.Do(req)
	if err != nil {
		return doc, fmt.Errorf("tandem does not answer at %s: %w; %s", address, err, hint())
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return doc, fmt.Errorf("tandem at %s answered %s: %s", address, res.Status, text)
	}
	if err := wire.Read(res.Header.Get("Content-Type"), res.Body, &doc); err != nil {
		return doc, fmt.Errorf("%s did not return a tandem status: %w", address, err)
	}
	return doc, nil
}
