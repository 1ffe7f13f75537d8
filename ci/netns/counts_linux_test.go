// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestEndpointsAreCounted makes real connections to five Services and counts by their answers which
// endpoint each has reached. `tandem top --endpoints` says the same, and so does
// tandem_service_connections_total for as many Services as --metrics-services allows: the
// busiest, and when one of them goes, one of the others. Mode iptables has no counters of
// endpoints, but conntrack; userspace says that it counts none.
func TestEndpointsAreCounted(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		s := newSite(t)
		s.flags = []string{"--proxy-mode", string(mode.Name), "--count-connections", "--count-endpoints", "--metrics-services", "3"}
		s.wrap = flavour.wrap
		all := countedServices()
		s.put(countedManifests(all))
		s.start()
		for i := range all {
			s.callTimes(&all[i], 10*(i+1))
		}
		ofEndpoint := func(a question.TopAddress) uint64 { return a.New }
		switch mode.Name {
		case config.NFTables, "ipvs":
		case "iptables": // has no counters of them: conntrack has the connections, ended ones for two minutes
			ofEndpoint = func(a question.TopAddress) uint64 { return a.Traffic.Connections }
			s.topSays(all, ofEndpoint)
			return
		default:
			if out, err := s.run(s.bin, "top", "--endpoints"); err == nil || !strings.Contains(out, "--count-endpoints") {
				t.Errorf("endpoints are not counted in mode %s: %v: %s", mode.Name, err, out)
			}
			return
		}
		s.topSays(all, ofEndpoint)
		s.eventually(time.Minute, "a series for each of the busiest", func() error { return s.series(all[2:], 3, 2) })
		s.put(countedManifests(all[:4])) // without the busiest
		s.eventually(time.Minute, "a series for another Service", func() error { return s.series(all[2:4], 3, 1) })
		s.topSays(all[:4], ofEndpoint)
	})
}

// counted is a Service and how many connections each of its endpoints was seen to get.
type counted struct {
	name string
	at   netip.AddrPort
	got  map[string]uint64 // by "IP:port"
}

func (c *counted) total() (sum uint64) {
	for _, n := range c.got {
		sum += n
	}
	return sum
}

func countedServices() (all []counted) {
	for i := range 5 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)}), 80)
		all = append(all, counted{fmt.Sprint("web-", i), at, map[string]uint64{}})
	}
	return all
}

// countedManifests are the Services, each with the three pods of a site.
func countedManifests(all []counted) string {
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {clusterIP: %[2]s, ports: [{name: http, protocol: TCP, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [{addresses: [10.244.1.2]}, {addresses: [10.244.1.3]}, {addresses: [10.244.1.4]}]
---
`, c.name, c.at.Addr())
	}
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", nodeIP)
	return b.String()
}

// callTimes makes connections to a Service, each of which must be answered at the first SYN.
func (s *site) callTimes(c *counted, times int) {
	s.t.Helper()
	for range times {
		a, err := s.net.DialOnce(lab.Call{From: "10.244.1.10", Proto: model.TCP, To: c.at, Timeout: time.Minute})
		if err != nil || a.Outcome != lab.Answered {
			s.t.Fatalf("%s: %s (%v)", c.name, a.Outcome, err)
		}
		c.got[a.Server.String()]++
	}
}

// topSays demands that top has exactly the connections that were made. IPVS adds up its counts every two
// seconds (net/netfilter/ipvs/ip_vs_est.c).
func (s *site) topSays(all []counted, ofEndpoint func(question.TopAddress) uint64) {
	s.t.Helper()
	s.eventually(time.Minute, "top", func() error { return s.top(all, ofEndpoint) })
	if out := s.must(s.bin, "top", "--endpoints", "--interval", "10ms"); !strings.Contains(out, "ENDPOINT") || !strings.Contains(out, "10.244.1.2:8080/tcp") {
		s.t.Errorf("no endpoints in\n%s", out)
	}
}

func (s *site) top(all []counted, ofEndpoint func(question.TopAddress) uint64) error {
	s.t.Helper()
	var top question.Top
	if code := verb(s.t, s, &top, "top", "--endpoints", "--interval", "10ms"); code != nothingBroke || len(top.Services) != len(all) {
		return fmt.Errorf("exit code %d, %d Services: %+v", code, len(top.Services), top)
	}
	for i, found := range top.Services { // the busiest first
		want := all[len(all)-1-i]
		got := map[string]uint64{}
		for _, e := range found.Endpoints {
			got[e.Address] = ofEndpoint(e)
		}
		if found.Service != "default/"+want.name || found.New != want.total() || !maps.Equal(got, want.got) {
			return fmt.Errorf("%s: %d connections, by endpoint %v; made were %s: %d, %v", found.Service, found.New, got, want.name, want.total(), want.got)
		}
	}
	return nil
}

// series compares the series of Services with the connections that were made: these must be among
// so many. Scrapes in quick succession share a reading.
func (s *site) series(all []counted, most int, omitted float64) error {
	const name = "tandem_service_connections_total"
	series := s.metrics()
	n := 0
	for key := range series {
		if strings.HasPrefix(key, name+"{") {
			n++
		}
	}
	if left := series["tandem_service_connections_omitted"]; n != most || left != omitted {
		return fmt.Errorf("%d Services have a series and %v have none, not %d and %v: %v", n, left, most, omitted, series)
	}
	for _, c := range all {
		if got := series[fmt.Sprintf("%s{namespace=\"default\",service=%q}", name, c.name)]; got != float64(c.total()) {
			return fmt.Errorf("%s: %v connections, made were %d", c.name, got, c.total())
		}
	}
	return nil
}
