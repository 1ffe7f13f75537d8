// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

const (
	worldsPerSite = 20 // that one proxy serves one after the other
	rowsPerWorld  = 10
)

// TestWorlds compares random worlds with the reference semantics on this kernel: some
// packets to each, real ones. A proxy serves a block of worlds, one after the other, with
// the settings of the block's first seed; each world replaces all objects of the last one.
// It takes 1 to 4 s a world and mode, a minute in userspace: more than two are for `make soak` and the flag. Once some of
// several hundred lost a datagram on a busy machine; 1,500 of all modes but ipvs since then, at
// loads of 12 to 16, lost none.
//
//	go test ./ci/netns -run 'TestWorlds/^nftables$' -worlds 1000 -from 5000
func TestWorlds(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		usual := 2
		if mode.Name == relay.Mode {
			usual = 0
		}
		first, n := conformance.WantedWorlds(usual)
		if n == 0 {
			t.Skip("for `make soak`, or with -worlds N: what waits for an answer to SCTP takes a minute a world")
		}
		var mu sync.Mutex
		var sum Report
		t.Cleanup(func() { t.Logf("%d random worlds: %v", sum.Steps, sum) }) // after the parallel subtests
		for from, end := first, first+uint64(n); from < end; from += worldsPerSite - from%worldsPerSite {
			t.Run(fmt.Sprintf("seed-%d", from), func(t *testing.T) {
				t.Parallel()
				site := worldSite{t: t, make: maker(mode, flavour), host: conformance.RandomWorld(conformance.NewRand(from - from%worldsPerSite)).Config}
				site.host.Mode = mode.Name // node ports on loopback addresses depend on it
				r := site.judge(randomWorlds(from, min(end, from-from%worldsPerSite+worldsPerSite)), flavour.name)
				mu.Lock()
				defer mu.Unlock()
				sum.add(r)
			})
		}
	})
}

// seededWorld is a random world; its packets follow from the seed, too.
type seededWorld struct {
	conformance.Random
	seed uint64
}

func randomWorlds(from, end uint64) (all []seededWorld) {
	for seed := from; seed < end; seed++ {
		all = append(all, seededWorld{conformance.RandomWorld(conformance.NewRand(seed)), seed})
	}
	return all
}

// worldSite plays worlds on nodes with the same settings.
type worldSite struct {
	t    *testing.T
	make Make
	host config.Config
}

// judge plays worlds, and makes them fewer and smaller if one fails.
func (w worldSite) judge(all []seededWorld, flavour string) Report {
	s, r, failed := w.play(all)
	if failed == "" {
		return r
	}
	last := slices.IndexFunc(s.Steps, func(step conformance.Step) bool { return strings.Contains(failed, "("+step.Title+")") })
	if last < 0 {
		last = len(all) - 1
	}
	seed := all[last].seed
	w.t.Errorf("%s\nagain: go test ./ci/netns -run 'TestWorlds/^%s$' -worlds %d -from %d", failed, flavour, seed-all[0].seed+1, all[0].seed)
	s, failed = w.shrink(all[:last+1], s, failed)
	w.t.Errorf("fewest worlds and objects that fail: %s\nagain, if it is one world: -worlds 1 -from %d\n%s", failed, seed, text(s))
	return r
}

// shrinkPlays bounds how often worlds are played again to make them smaller.
const shrinkPlays = 40

// shrink leaves out worlds and then objects of the last one, as long as it still fails.
func (w worldSite) shrink(all []seededWorld, s *conformance.Scenario, failed string) (*conformance.Scenario, string) {
	plays := 0
	fails := func(fewer []seededWorld) bool {
		if plays++; plays > shrinkPlays || w.t.Context().Err() != nil {
			return false
		}
		smaller, _, how := w.play(fewer)
		if how == "" {
			return false
		}
		all, s, failed = fewer, smaller, how
		return true
	}
	for n := 1; n < len(all) && !fails(all[len(all)-n:]); n *= 4 {
	}
	last := func(change func(*seededWorld)) []seededWorld {
		fewer := slices.Clone(all)
		change(&fewer[len(fewer)-1])
		return fewer
	}
	for i := len(all[len(all)-1].Services) - 1; i >= 0; i-- {
		fails(last(func(x *seededWorld) { x.Services = slices.Delete(slices.Clone(x.Services), i, i+1) }))
	}
	for i := len(all[len(all)-1].Slices) - 1; i >= 0; i-- {
		fails(last(func(x *seededWorld) { x.Slices = slices.Delete(slices.Clone(x.Slices), i, i+1) }))
	}
	return s, failed
}

// play plays worlds one after the other, and returns what was wrong.
func (w worldSite) play(all []seededWorld) (s *conformance.Scenario, r Report, failed string) {
	s, err := worldScenario(w.host, all)
	if err == nil {
		r, err = Run(w.t.Context(), s, w.t.TempDir(), w.make)
	}
	if failed = strings.Join(r.Failures, "\n"); err != nil {
		failed += "\n" + err.Error()
	}
	return s, r, failed
}

// worldScenario is worlds as the steps of a scenario, with packets of each.
func worldScenario(host config.Config, all []seededWorld) (*conformance.Scenario, error) {
	s := &conformance.Scenario{Name: "worlds", File: "worlds", Host: host, Machine: model.Machine{Listeners: &model.Listeners{}}}
	world := conformance.NewWorld(s)
	before := map[string][]byte{}
	for i, w := range all {
		step := conformance.Step{Number: i, Title: fmt.Sprintf("seed %d", w.seed)}
		var err error
		if step.Files, err = manifestsOf(w.Random); err != nil {
			return s, err
		}
		step.Changed, step.Removed = conformance.FilesSince(step.Files, before)
		before = step.Files
		h, ports, err := world(step)
		if err != nil {
			return s, err
		}
		step.Packets = packets(s, conformance.NewRand(w.seed), h, ports)
		s.Steps = append(s.Steps, step)
	}
	return s, nil
}

// manifestsOf are the files of a world, one for each object: what is wrong with one, as
// random objects often are, is no reason to keep others.
func manifestsOf(w conformance.Random) (map[string][]byte, error) {
	zone := strings.Replace(conformance.DefaultNode, "zone: zone-a", fmt.Sprintf("zone: %q", w.Host.Zone), 1)
	files := map[string][]byte{conformance.DefaultNodeFile: []byte(zone)}
	put := func(name string, o runtime.Object, apiVersion, kind string) error {
		o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
		data, err := json.MarshalIndent(o, "", " ")
		files[name+".json"] = append(data, '\n')
		return err
	}
	var errs []error
	for _, x := range w.Services {
		errs = append(errs, put("service-"+x.Name.Name, apitest.Service(x), "v1", "Service"))
	}
	for _, x := range w.Slices {
		errs = append(errs, put("slice-"+x.Name.Name, apitest.Slice(x), "discovery.k8s.io/v1", "EndpointSlice"))
	}
	for i, x := range w.Host.ServiceCIDRs {
		o := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("range-%d", i)}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{x.String()}}}
		errs = append(errs, put(o.Name, o, "networking.k8s.io/v1", "ServiceCIDR"))
	}
	return files, errors.Join(errs...)
}

// packets are some of the probes of a world, of as many kinds as possible, with what the
// reference semantics say.
func packets(s *conformance.Scenario, rng *rand.Rand, host *model.Host, ports []*model.Port) (rows []conformance.Packet) {
	type kind struct {
		fate oracle.Fate
		kind model.Kind
		from conformance.Location
	}
	found := map[kind][]conformance.Packet{}
	for _, p := range conformance.Probes(host, ports) {
		row, ok := rowOf(host, p)
		if !ok {
			continue
		}
		o := oracle.Decide(host, ports, s.Oracle(host, row))
		row.Expect = conformance.Expect{Fate: o.Fate, Endpoints: slices.Clone(o.Endpoints)}
		for i := range row.Expect.Endpoints {
			row.Expect.Endpoints[i].Share = 0 // even shares; to count them takes hundreds of connections
		}
		for _, port := range ports {
			row.Expect.SessionAffinity = row.Expect.SessionAffinity || port.ID == o.Port && port.SessionAffinity > 0 && o.Fate == oracle.Forward
		}
		k := kind{o.Fate, o.Kind, conformance.LocationOf(row.Src)}
		found[k] = append(found[k], row)
	}
	kinds := slices.Collect(maps.Keys(found))
	slices.SortFunc(kinds, func(a, b kind) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	slices.SortStableFunc(kinds, func(a, b kind) int { return precedence(a.fate) - precedence(b.fate) })
	for _, k := range kinds[:min(len(kinds), rowsPerWorld)] {
		row := found[k][rng.IntN(len(found[k]))]
		row.Line = len(rows) + 1
		rows = append(rows, row)
	}
	return rows
}

// precedence puts what passes last: it says least.
func precedence(f oracle.Fate) int {
	if f == oracle.Pass {
		return 1
	}
	return 0
}

// rowOf is a probe as a row of a packet table. Some senders are nowhere in the network:
// a bridge's own address, and the neighbours of ranges that end an address space.
func rowOf(host *model.Host, p oracle.Packet) (row conformance.Packet, ok bool) {
	row = conformance.Packet{From: p.Src.String(), Src: p.Src, Proto: p.Proto, To: p.Dst}
	own := p.Src.IsLoopback() || slices.Contains(host.IPs, p.Src)
	switch {
	case own && p.Iface == "":
		row.From = "host"
	case own || p.Iface == "" || !p.Src.IsGlobalUnicast() || reserved(p.Src) || virtual(p.Src) || p.Src == p.Dst.Addr():
		return row, false
	}
	return row, true
}

// reserved reports whether a kernel takes no packets from an address.
func reserved(a netip.Addr) bool {
	return netip.MustParsePrefix("0.0.0.0/8").Contains(a) || netip.MustParsePrefix("240.0.0.0/4").Contains(a)
}

// text is a scenario as a file of ci/scenarios, to be kept there.
func text(s *conformance.Scenario) string {
	var b strings.Builder
	for _, step := range s.Steps {
		for _, name := range step.Changed {
			fmt.Fprintf(&b, "-- %d/%s --\n%s", step.Number, name, step.Files[name])
		}
		if len(step.Removed) > 0 {
			fmt.Fprintf(&b, "-- %d/rm --\n%s\n", step.Number, strings.Join(step.Removed, "\n"))
		}
		fmt.Fprintf(&b, "-- %d/packets --\n", step.Number)
		for _, row := range step.Packets {
			fmt.Fprintf(&b, "%s -> %s\n", row, row.Expect)
		}
	}
	return b.String()
}
