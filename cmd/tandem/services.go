// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/wire"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/service"
)

func newServices(k *cluster) *cobra.Command {
	var out output
	var only filter
	from := origin{cluster: k}
	c := &cobra.Command{
		Use:   "services [NAMESPACE/NAME]",
		Short: "List the Services of the running tandem; of one, every endpoint and why it is used or not",
		Long: `services lists what the running tandem serves. Of a single Service it shows each
frontend and each endpoint of its EndpointSlices: conditions, since when it takes
connections ("start" is since the start of tandem, or longer), and if it takes none,
why.`,
		Example: "  tandem services\n  tandem services -n shop --state Partial\n  tandem services kube-system/kube-dns",
		Args:    atMostOne, ValidArgsFunction: completeServices(0),
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
			found, err := ask(cmd, &from, question.ListServices(), question.ServicesRequest{Service: serviceText(name), Filter: only.Filter})
			if err != nil {
				return err
			}
			return out.print(cmd, report{document: found, own: namesOf(found.Services, func(s *question.ServiceDetail) string { return s.Name }), text: func(s *screen) { writeServices(s, found, len(args) > 0, &only) }})
		},
	}
	out.register(c, formName)
	from.register(c)
	only.register(c, question.States()...)
	return c
}

// writeServices shows Services to people: a list, or a single one with all of it.
func writeServices(s *screen, found question.Services, one bool, only *filter) {
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
	s.printf("%s", only.matches(len(found.Services), found.Total))
}

func writeService(s *screen, d *question.ServiceDetail) {
	s.printf("%s: ", printable.Text(d.Name))
	s.text.WriteString(s.paint(stateColor(d.State), d.State) + "\n\n")
	frontends := table{columns: []column{
		{name: "ADDRESS", keep: true}, {name: "KIND", keep: true}, {name: "PORT"}, {name: "ENDPOINTS"}, {name: "SINCE", keep: true}, {name: "SOURCES", spare: true},
	}}
	for _, f := range d.Frontends {
		frontends.add(f.Address+"/"+f.Proto, f.Kind, cmp.Or(f.Port, "-"), fmt.Sprintf("%d %s", f.Endpoints, f.Why), sinceText(f.Since), question.ShowSources(f.Sources))
	}
	s.table(frontends)
	s.printf("\n")
	endpoints := table{columns: []column{
		{name: "ENDPOINT", keep: true}, {name: "PORT"}, {name: "POD"}, {name: "NODE"}, {name: "SLICE", wide: true}, {name: "CONDITIONS"}, {name: "USED", keep: true}, {name: "SINCE", keep: true}, {name: "WHY"},
	}}
	for _, e := range d.Endpoints {
		used, since := "yes", sinceText(e.Since)
		if !e.Used {
			used, since = "NO", "-"
		}
		endpoints.add(e.Address+"/"+e.Protocol, cmp.Or(e.Port, "-"), cmp.Or(e.Pod, "-"), cmp.Or(e.Node, "-"), e.Slice, cmp.Or(strings.Join(e.Conditions, ","), "none"), used, since, e.Why)
	}
	if !slices.ContainsFunc(d.Endpoints, func(e question.EndpointDetail) bool { return e.Pod != "" }) { // of manifests
		endpoints = endpoints.shown(func(i int) bool { return endpoints.columns[i].name != "POD" })
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

func newStatus(k *cluster) *cobra.Command {
	var address string
	var out output
	var only filter
	var again repeat
	from := origin{cluster: k}
	var all bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what the running tandem serves, what it rejected, and why",
		Long: `status shows whether the running tandem is healthy, what is wrong, and the Services
that it serves: those in the worst state first, and of many the first ` + strconv.Itoa(screenful) + `. The exit code is 1
when it is not healthy.`,
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
				doc.Select(only.Filter)
				err = out.printTo(s, report{document: doc, own: namesOf(doc.Services, func(s *question.Service) string { return s.Name }), text: func(s *screen) { writeStatus(s, doc, &only, all) }})
				if err != nil || doc.Healthy || again.on {
					return err
				}
				return fmt.Errorf("tandem on %s is not healthy, see above", doc.Node)
			})
		},
	}
	if k == nil {
		c.Flags().StringVar(&address, "address", config.Default().HTTPAddress, "where the running tandem serves its status")
	}
	c.Flags().BoolVar(&all, "all", false, "list all Services and problems, however many")
	out.register(c, formName)
	only.register(c, question.States()...)
	again.register(c)
	from.register(c, "watch")
	return c
}

// askStatus asks the running tandem, whose status all may read, or a snapshot of one.
func askStatus(cmd *cobra.Command, from *origin, address string, only *question.Filter) (question.Status, error) {
	d, err := from.document(cmd)
	switch {
	case err != nil:
		return question.Status{}, err
	case d != nil:
		return question.StatusOf(d, *only), nil
	case from.cluster != nil:
		return platform.Status(cmd.Context(), *only)
	}
	return fetchStatus(cmd, address, only)
}

// screenful is how many Services, and how many problems, a status shows.
const screenful = 20

// writeStatus shows a status to people: what is wrong first, and no more of it than can be
// read, unless all is asked for.
func writeStatus(s *screen, d question.Status, only *filter, all bool) {
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
	if only.All() {
		s.printf("%s%s, ", printable.Count(len(d.Services), "Service"), byState(d.Services))
	}
	s.printf("%s in the data plane; since the start %s, %s; %s found changed by others\n",
		printable.Count(d.Objects, "object"), printable.Count(d.Syncs, "sync"), printable.Count(d.Writes, "write"), printable.Count(d.Drift, "object"))
	writeInputs(s, &d)
	most := screenful
	if all {
		most = math.MaxInt
	}
	services := slices.SortedStableFunc(slices.Values(d.Services), question.Worst)
	var problems []question.Problem
	for _, svc := range services {
		for _, p := range svc.Problems {
			p.Object = svc.Name
			problems = append(problems, p)
		}
	}
	if only.All() {
		problems = slices.Concat(d.Problems, problems)
	} else { // what was asked for comes first
		problems = slices.Concat(problems, d.Problems)
	}
	for i, p := range problems {
		if i == most {
			s.printf("! and %s (--all)\n", printable.Count(len(problems)-most, "more problem"))
			break
		}
		writeProblem(s, p, p.Object)
	}
	if len(services) > 0 {
		s.printf("\n")
		s.table(servicesTable(services[:min(most, len(services))]))
	}
	if len(services) > most {
		s.printf("and %s (--all)\n", printable.Count(len(services)-most, "more Service"))
	}
	s.printf("%s", only.matches(len(services), d.Total))
}

// byState counts Services by state: " (2 Failing, 298 Programmed)".
func byState(services []question.Service) string {
	counts := map[string]int{}
	for i := range services {
		counts[services[i].State]++
	}
	var texts []string
	for _, state := range question.States() {
		if n := counts[state]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, ", ") + ")"
}

// writeInputs prints how up to date the inputs are, and their totals.
func writeInputs(s *screen, d *question.Status) {
	if d.Hash != "" {
		s.printf("desired state %s", d.Hash)
		if d.SyncedAt != nil && !d.At.IsZero() {
			s.printf(", programmed %s ago", d.At.Sub(*d.SyncedAt).Round(time.Second))
		}
		s.printf("\n")
	}
	for _, in := range d.Inputs {
		if s.printf("%s: ", printable.Text(in.Name)); in.Unlisted {
			s.printf("never listed, for %.1f s", in.Age)
		} else {
			s.printf("up to date %.1f s ago", in.Age)
		}
		if in.Version != "" {
			s.printf(", resourceVersion %s, %s", printable.Text(in.Version), printable.Count(in.Objects, "object"))
		}
		if in.Err != "" {
			s.printf(": %s", printable.Text(in.Err))
		}
		s.printf("\n")
	}
}

func servicesTable(services []question.Service) table {
	t := table{columns: []column{
		{name: "SERVICE"},
		{name: "ADDRESS", keep: true},
		{name: "PORT", wide: true},
		{name: "KIND", spare: true},
		{name: "ENDPOINTS"},
		{name: "WHY", spare: true},
		{name: "STATE", keep: true, state: true},
		{name: "SOURCES", spare: true},
	}}
	for _, svc := range services {
		name, state := svc.Name, svc.State
		for _, f := range svc.Frontends {
			t.add(name, f.Address+"/"+f.Proto, f.Port, f.Kind, strconv.Itoa(f.Endpoints), f.Why, state, question.ShowSources(f.Sources))
			name, state = "", ""
		}
		if len(svc.Frontends) == 0 {
			t.add(name, "-", "-", "-", "-", "-", state, "-")
		}
	}
	return t
}

func writeProblem(s *screen, p question.Problem, object string) {
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
		return "the service runs: name its --metrics-bind-address in --address"
	}
	return "is it running? start it with 'tandem run', or name its --metrics-bind-address in --address"
}

// fetchStatus fetches the status, with the Services of a filter.
func fetchStatus(cmd *cobra.Command, address string, only *question.Filter) (doc question.Status, err error) {
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, "http://"+address+"/status?"+health.Query(*only).Encode(), nil)
	if err != nil {
		return doc, usageError{fmt.Errorf("--address: %w", err)}
	}
	req.Header.Set("Accept", wire.Accept)
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}} // a watch would leave a connection behind each answer
	res, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return doc, fmt.Errorf("no tandem answers at %s: %s", address, hint())
	}
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

// topVerb is the verb whose answers of all nodes are added up, and limitFlag how many Services it shows.
const (
	topVerb   = "top"
	limitFlag = "limit"
)

func newTop(k *cluster) *cobra.Command {
	var out output
	var only filter
	var again repeat
	from := origin{cluster: k}
	var limit int
	var endpoints, bytes bool
	c := &cobra.Command{
		Use:   topVerb,
		Short: "Show which Services get new connections, or have open ones, the busiest first",
		Long: `top shows the new connections of each Service: how many there were since its
frontends were programmed, and how many a second since the previous sample. They are
counted by the kernel, in mode nftables with --count-connections, in mode iptables until
a frontend's rules are written again, which is when it or one near it changes; and by
relays in mode userspace, there by Service port, not by frontend. Where none are counted
it shows the open connections that the connection tracking of Linux has; without that the
exit code is 2. Services without any are left out. Of a snapshot it shows how many there
were.

--endpoints shows how many each endpoint got, in mode ipvs, and in mode nftables with
--count-endpoints; not those of Services with affinity there. Else it shows how many are
open. --bytes shows the open connections of each Service in all modes, and their bytes in
both directions: connection tracking counts them with the sysctl
net.netfilter.nf_conntrack_acct=1. What these cost is paid only while they are asked for.`,
		Example: "  tandem top\n  tandem top --endpoints --bytes\n  tandem top --watch\n  tandem top -n shop -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := only.check(); err != nil {
				return err
			}
			r := question.TopRequest{Filter: only.Filter, Frontends: out.form != formTable, Endpoints: endpoints, Bytes: bytes, Open: true}
			look, most := askTop, limit
			if k != nil && k.all { // a part of a sum: all, and also that there is nothing
				look, most = askTopAsItIs, 0
			}
			before, err := look(cmd, &from, r)
			if err != nil {
				return err
			}
			if from.path != "" {
				return out.print(cmd, topReport(before, most))
			}
			if !sleep.For(cmd.Context(), min(again.every, time.Second)) {
				return cmd.Context().Err()
			}
			return again.run(cmd.Context(), newScreen(cmd.OutOrStdout()), func(s *screen) error {
				now, err := look(cmd, &from, r)
				if err != nil {
					return err
				}
				now.Since(before)
				before = now
				return out.printTo(s, topReport(now, most))
			})
		},
	}
	out.register(c, formName)
	only.register(c)
	again.register(c)
	c.Flags().BoolVar(&endpoints, "endpoints", false, "show the new connections of each endpoint")
	c.Flags().BoolVar(&bytes, "bytes", false, "show open connections and their bytes, as connection tracking counts them")
	from.register(c, "watch", "endpoints", "bytes")
	c.Flags().IntVar(&limit, limitFlag, 20, "how many Services to show; 0 for all")
	return c
}

// askTopAsItIs asks for counts.
func askTopAsItIs(cmd *cobra.Command, from *origin, r question.TopRequest) (question.Top, error) {
	return ask(cmd, from, question.CountConnections(), r)
}

// askTop asks for counts. Where there are none the mode has none, nor what stands in for them, or a snapshot could not have them.
func askTop(cmd *cobra.Command, from *origin, r question.TopRequest) (question.Top, error) {
	t, err := askTopAsItIs(cmd, from, r)
	switch {
	case err == nil && t.EndpointsNotCounted != "":
		return t, unsupportedError(t.EndpointsNotCounted)
	case err != nil || t.Tracked:
		return t, err
	case t.NotCounted == question.NotCounted(t.Mode):
		return t, unsupportedError(t.NotCounted)
	case t.NotCounted != "":
		return t, errors.New(t.NotCounted)
	}
	return t, nil
}

// busiest are so many of Services; all with a limit of 0.
func busiest(services []question.TopService, limit int) []question.TopService {
	if limit > 0 && len(services) > limit {
		return services[:limit]
	}
	return services
}

// topReport is so many of the Services; all with a limit of 0.
func topReport(t question.Top, limit int) report {
	t.Services = busiest(t.Services, limit)
	return report{document: t, own: namesOf(t.Services, func(s *question.TopService) string { return s.Service }), text: func(s *screen) { writeTop(s, t) }}
}

func writeTop(s *screen, top question.Top) {
	for _, why := range []string{top.NotCounted, top.BytesNotCounted} {
		if why != "" {
			s.printf("%s\n", printable.Text(why))
		}
	}
	writeTopServices(s, top.Services, topHas{counted: top.NotCounted == "", tracked: top.Tracked, bytes: top.Tracked && top.BytesNotCounted == ""})
}

// topHas are the counts that Services have.
type topHas struct {
	counted bool // new connections
	tracked bool // open ones
	bytes   bool // of open ones
}

func writeTopServices(s *screen, services []question.TopService, has topHas) {
	endpoints := slices.ContainsFunc(services, func(r question.TopService) bool { return len(r.Endpoints) > 0 })
	var t table
	var shown []bool // of the cells that rows are made of
	for _, c := range []struct {
		column
		shown bool
	}{
		{column{name: "SERVICE"}, true},
		{column{name: "FRONTEND", wide: true, keep: true}, has.counted},
		{column{name: "ENDPOINT", keep: true}, endpoints},
		{column{name: "PER SECOND", keep: true}, has.counted},
		{column{name: "NEW CONNECTIONS", keep: true}, has.counted},
		{column{name: "OPEN", keep: true}, has.tracked},
		{column{name: "BYTES/S", keep: true}, has.bytes},
		{column{name: "BYTES", keep: true}, has.bytes},
	} {
		if shown = append(shown, c.shown); c.shown {
			t.columns = append(t.columns, c.column)
		}
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	add := func(service, frontend, endpoint, rate, n string, x *question.TopTraffic) {
		all := []string{service, frontend, endpoint, rate, n, "", "", ""}
		if x != nil {
			all = append(all[:5], number(x.Connections), fmt.Sprintf("%.0f", x.PerSecond), number(x.Bytes))
		}
		var row []string
		for i, cell := range all {
			if shown[i] {
				row = append(row, cell)
			}
		}
		t.add(row...)
	}
	for _, row := range services {
		add(row.Service, "", "", fmt.Sprintf("%.1f", row.PerSecond), number(row.New), row.Traffic)
		for _, f := range row.Frontends {
			if s.wide && has.counted {
				add("", f.Address+"/"+f.Proto, "", "", number(f.New), nil)
			}
		}
		for _, e := range row.Endpoints {
			add("", "", strings.TrimSpace(e.Address+"/"+e.Proto+" "+e.Pod), fmt.Sprintf("%.1f", e.PerSecond), number(e.New), e.Traffic)
		}
	}
	s.table(t)
}

func newHistory(k *cluster) *cobra.Command {
	var f history.Filter
	var out output
	var again repeat
	from := origin{cluster: k}
	c := &cobra.Command{
		Use:   "history [NAMESPACE/NAME]",
		Short: "Show the last changes: what was received, what it rewrote, how long each stage took",
		Long: `history shows the last changes that reached the running tandem, oldest first: the
object, what differs from its version before, such as "endpoint 10.1.2.3 not ready", and
its resourceVersion; how old the change was when it arrived; how long it queued, and how
long it took to resolve, compile and write it; what was created (+), replaced (~) and
deleted (-) in the data plane; and what failed. Changes that were
applied together share a sync. The last ` + fmt.Sprint(history.Most) + ` changes are kept, in memory only.`,
		Example: "  tandem history\n  tandem history default/web\n  tandem history --watch --limit 20\n  tandem history --failed -o json",
		Args:    atMostOne, ValidArgsFunction: completeServices(0),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			f := f
			if f.Service, err = serviceArgument(args); err != nil {
				return err
			}
			if f.Limit < 0 {
				return usageError{fmt.Errorf("--limit %d: must not be negative", f.Limit)}
			}
			return again.run(cmd.Context(), newScreen(cmd.OutOrStdout()), func(s *screen) error {
				d, err := ask(cmd, &from, question.ListChanges(), f)
				if err == nil && len(d.Entries) == 0 && len(args) > 0 { // of a Service that there is nothing has happened, or that is forgotten
					_, err = ask(cmd, &from, question.ListServices(), question.ServicesRequest{Service: serviceText(f.Service)})
				}
				if err != nil {
					return err
				}
				return out.printTo(s, report{document: d, text: func(s *screen) { writeHistory(s, d) }})
			})
		},
	}
	c.Flags().IntVar(&f.Limit, "limit", 50, "how many changes to show: the newest; 0 for all")
	c.Flags().BoolVar(&f.Failed, "failed", false, "only changes whose sync failed in part")
	out.register(c)
	again.register(c)
	from.register(c, "watch")
	return c
}

// writeHistory shows a history to people, one line a change.
func writeHistory(s *screen, d history.Document) {
	t := table{columns: []column{
		{name: "TIME", keep: true},
		{name: "CHANGE"},
		{name: "OBJECT"},
		{name: "WHAT"},
		{name: "VERSION", wide: true},
		{name: "AGE", keep: true, spare: true},
		{name: "QUEUE", keep: true, spare: true},
		{name: "RESOLVE", keep: true, spare: true},
		{name: "COMPILE", keep: true, spare: true},
		{name: "WRITE", keep: true},
		{name: "WROTE"},
	}}
	for i := range d.Entries {
		e := &d.Entries[i]
		row := []string{e.At.Format(time.DateTime + ".000"), e.Kind + " " + e.Verb, cmp.Or(e.About(), "-"), cmp.Or(e.Detail, "-"), "-", history.Short(e.Age)}
		if e.Version != 0 {
			row[4] = strconv.FormatUint(e.Version, 10)
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
