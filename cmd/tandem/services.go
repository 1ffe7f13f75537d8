// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/platform"
)

func newServices() *cobra.Command {
	var out output
	var only filter
	var from snapshotFlag
	c := &cobra.Command{
		Use:   "services [NAMESPACE/NAME]",
		Short: "List the Services of the running tandem; of one, every endpoint and why it is used or not",
		Long: `services lists what the running tandem serves. Of a single Service it shows each
frontend and each endpoint of its EndpointSlices: conditions, since when it takes
connections ("start" is since the start of tandem, or longer), and if it takes none,
why.`,
		Example: "  tandem services\n  tandem services -n shop --state Partial\n  tandem services kube-system/kube-dns",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := serviceArgument(args)
			if err != nil {
				return err
			}
			if err := only.check(); err != nil {
				return err
			}
			if len(args) > 0 && !only.All() {
				return usageError{errors.New("-n, --name and --state select from the list of all: they do not apply to a single Service")}
			}
			r := platform.ServicesRequest{Service: serviceText(name), Filter: only.Filter}
			found, err := askServices(cmd, &from, r)
			if err != nil {
				return err
			}
			return out.print(cmd, report{document: found, text: func(s *screen) error { writeServices(s, found, len(args) > 0); return nil }})
		},
	}
	out.register(c)
	from.register(c)
	only.register(c, model.Programmed.String(), model.Partial.String(), status.Pending, model.Failing.String())
	return c
}

// askServices asks the running tandem, or a snapshot of one.
func askServices(cmd *cobra.Command, from *snapshotFlag, r platform.ServicesRequest) (status.Services, error) {
	file, err := from.read(cmd)
	switch {
	case err != nil:
		return status.Services{}, err
	case file != nil:
		return platform.ServicesOf(file, r)
	}
	return platform.Services().Ask(cmd.Context(), r)
}

// writeServices shows Services to people: a list, or a single one with all of it.
func writeServices(s *screen, found status.Services, one bool) {
	if one {
		for i := range found.Services {
			writeService(s, &found.Services[i])
		}
		return
	}
	t := table{columns: []column{{name: "SERVICE"}, {name: "ADDRESSES"}, {name: "ENDPOINTS", keep: true}, {name: "STATE", keep: true, state: true}}}
	for _, d := range found.Services {
		var at []string
		for _, f := range d.Frontends {
			at = append(at, f.Address+"/"+f.Proto)
		}
		if len(at) > 3 && !s.wide {
			at = append(at[:3], fmt.Sprintf("and %d more", len(at)-3))
		}
		t.add(d.Name, cmp.Or(strings.Join(at, ","), "-"), strconv.Itoa(d.Used), d.State)
	}
	s.table(t)
}

func writeService(s *screen, d *status.ServiceDetail) {
	s.printf("%s: ", printable.Text(d.Name))
	s.text.WriteString(s.paint(stateColor(d.State), d.State) + "\n\n")
	frontends := table{columns: []column{
		{name: "ADDRESS", keep: true}, {name: "KIND", keep: true}, {name: "PORT"}, {name: "ENDPOINTS"}, {name: "SINCE", keep: true}, {name: "SOURCES"},
	}}
	for _, f := range d.Frontends {
		frontends.add(f.Address+"/"+f.Proto, f.Kind, cmp.Or(f.Port, "-"), fmt.Sprintf("%d %s", f.Endpoints, f.Why), sinceText(f.Since), status.ShowSources(f.Sources))
	}
	s.table(frontends)
	s.printf("\n")
	endpoints := table{columns: []column{
		{name: "ENDPOINT", keep: true}, {name: "PORT"}, {name: "NODE"}, {name: "SLICE", wide: true}, {name: "CONDITIONS"}, {name: "USED", keep: true}, {name: "SINCE", keep: true}, {name: "WHY"},
	}}
	for _, e := range d.Endpoints {
		used, since := "yes", sinceText(e.Since)
		if !e.Used {
			used, since = "NO", "-"
		}
		endpoints.add(e.Address+"/"+e.Protocol, cmp.Or(e.Port, "-"), cmp.Or(e.Node, "-"), e.Slice, cmp.Or(strings.Join(e.Conditions, ","), "none"), used, since, e.Why)
	}
	s.table(endpoints)
	for _, p := range d.Problems {
		writeProblem(s, p, d.Name)
	}
}

func sinceText(at *time.Time) string {
	if at == nil {
		return "start"
	}
	return at.Format(time.RFC3339)
}
