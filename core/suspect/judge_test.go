// SPDX-License-Identifier: Apache-2.0

package suspect_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
)

func TestDeadNodeIsFoundWithinASecond(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.run(5 * time.Second)
	w.want()
	w.kill(2)
	w.run(950 * time.Millisecond)
	w.want("10.244.4.10")
	if len(w.verdict) != 1 || w.verdict[0].Name != "node-4" {
		t.Errorf("verdicts %v", w.verdict)
	}
}

// Each endpoint of a silent node is ejected on evidence of its own: one that is not in use is not.
func TestEndpointsOfASilentNode(t *testing.T) {
	w := newWorld(t, 4, 5, 3, 100)
	w.services[3].perSecond = 0 // unused
	w.run(5 * time.Second)
	w.kill(0)
	w.run(950 * time.Millisecond)
	w.want("10.244.2.10", "10.244.2.11", "10.244.2.12")
}

func TestOneSilentEndpointOfALivingNode(t *testing.T) {
	w := newWorld(t, 2, 5, 3, 100)
	w.run(5 * time.Second)
	w.dead[endpoint(0, 0)] = true
	w.run(950 * time.Millisecond)
	w.want("10.244.2.10")
	if w.verdict[0].Name != "10.244.2.10" {
		t.Errorf("it is about %s", w.verdict[0].Name)
	}
}

func TestReturn(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.run(5 * time.Second)
	w.kill(2)
	w.run(60 * time.Second)
	w.want("10.244.4.10")
	w.revive(2)
	revived := w.now
	w.run(10500 * time.Millisecond)
	w.want()
	if full := w.last.Suspects[endpoint(2, 0)].Add(model.SlowStart); full.After(revived.Add(11 * time.Second)) {
		t.Errorf("full share %s after its return", full.Sub(revived))
	}
	w.run(30 * time.Second)
	w.want()
	w.kill(2) // and again
	w.run(950 * time.Millisecond)
	w.want("10.244.4.10")
}

func TestProbesOfTheSilentBackOff(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.run(5 * time.Second)
	w.kill(2)
	w.run(5 * time.Second)
	before := w.probes
	w.run(60 * time.Second)
	if n := w.probes - before; n < 5 || n > 10 {
		t.Errorf("%d SYNs in a minute", n)
	}
}

func TestSilenceIsTriedAfterMinutes(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.run(5 * time.Second)
	w.kill(2)
	w.run(time.Second)
	w.want("10.244.4.10")
	w.revive(2)
	w.deaf[endpoint(2, 0)] = true // it drops what comes from nodes
	w.run(5 * time.Minute)
	w.want()
	w.run(time.Minute)
	w.want()
}

func TestSourcesAreDropped(t *testing.T) {
	w := newWorld(t, 1, 5, 6, 600)
	for c := range 2 { // forever
		w.denied[[2]netip.Addr{w.services[0].clients[c], endpoint(1, 0)}] = true
	}
	w.run(20 * time.Second)
	for c := range 4 { // from now on
		w.denied[[2]netip.Addr{w.services[0].clients[c], endpoint(3, 0)}] = true
	}
	w.deaf[endpoint(3, 0)] = true
	w.run(60 * time.Second)
	w.want()
	if len(w.verdict) > 0 {
		t.Error(w.verdict)
	}
}

func TestClientsThatWereNeverAnswered(t *testing.T) {
	w := newWorld(t, 1, 5, 6, 1)
	for e := range 2 {
		w.deaf[endpoint(e, 0)] = true // a policy that drops all but some clients, which rest
		for _, c := range w.services[0].clients {
			w.denied[[2]netip.Addr{c, endpoint(e, 0)}] = true
		}
	}
	w.run(5 * time.Minute)
	if len(w.verdict) > 0 {
		t.Error(w.verdict)
	}
}

func TestOneClientIsNoEvidence(t *testing.T) {
	w := newWorld(t, 1, 5, 1, 100)
	w.run(5 * time.Second)
	w.kill(2)
	w.run(time.Minute)
	w.want()
}

func TestAcceptQueueOfLivingKernel(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.run(5 * time.Second)
	w.closed[endpoint(2, 0)] = true
	w.run(time.Minute)
	w.want()
	if perSecond := float64(w.probes) / 60; perSecond > 2 {
		t.Errorf("%.1f SYNs a second", perSecond)
	}
}

func TestAllSilentAtOnce(t *testing.T) {
	w := newWorld(t, 2, 5, 3, 100)
	w.run(5 * time.Second)
	for n := range 5 {
		w.kill(n)
	}
	w.run(time.Minute)
	w.want()
	for n := range 5 {
		w.revive(n)
	}
	w.run(5 * time.Second)
	w.want()
	if len(w.verdict) > 0 {
		t.Error(w.verdict)
	}
}

func TestMoreThanAThirdIsOurFault(t *testing.T) {
	w := newWorld(t, 1, 9, 3, 300)
	w.run(5 * time.Second)
	for n := range 3 {
		w.kill(n)
	}
	w.run(2 * time.Second)
	w.want("10.244.2.10", "10.244.3.10", "10.244.4.10")
	w.kill(3)
	w.run(2 * time.Second)
	w.want()
	if !slices.Equal(w.last.Exempt, []string{"default"}) {
		t.Error("our own network is not in doubt")
	}
	w.run(time.Minute)
	w.want()
	w.revive(3)
	w.run(11 * time.Second)
	w.want("10.244.2.10", "10.244.3.10", "10.244.4.10")
}

func TestTheOnlyOtherNode(t *testing.T) {
	w := newWorld(t, 1, 1, 3, 100)
	w.run(5 * time.Second)
	w.kill(0)
	w.run(2 * time.Second)
	w.want("10.244.2.10") // what is left of the pool is for resolve to say
}

func TestAnswersGoAnotherWay(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.oneWay = true
	w.run(5 * time.Second)
	w.want()
	if !w.last.OneWay || w.last.Pause == 0 {
		t.Error("asymmetric routing is not noticed")
	}
	w.kill(1)
	w.run(time.Minute)
	w.want()
}

// A change of the EndpointSlices of an address is no sign of life, but has it asked at once.
func TestAChangeIsNoSignOfLife(t *testing.T) {
	w := newWorld(t, 2, 5, 3, 100)
	w.run(5 * time.Second)
	w.kill(2)
	w.run(time.Minute)
	w.want("10.244.4.10", "10.244.4.11")
	w.dead[endpoint(2, 0)] = false
	both := []netip.Addr{endpoint(2, 0), endpoint(2, 1)}
	w.judge.Changed(both, w.now)
	w.run(500 * time.Millisecond)
	w.want("10.244.4.11")
	for range 100 {
		w.judge.Changed(both, w.now)
		w.run(100 * time.Millisecond)
		w.want("10.244.4.11")
	}
}

func TestForgedSources(t *testing.T) {
	w := newWorld(t, 1, 5, 0, 2000)
	for i := range 60000 {
		w.services[0].clients = append(w.services[0].clients, ip("198.18.%d.%d", i/250, i%250))
	}
	w.run(5 * time.Second)
	w.want()
	for e := range 5 { // its queue is full, and it sends no cookies
		w.closed[endpoint(e, 0)] = true
	}
	w.run(5 * time.Second)
	w.want()
	if len(w.verdict) > 0 {
		t.Error(w.verdict)
	}
}

// While endpoints are unknown none is judged, and what was due is decided after.
func TestEndpointsAreUnknownForAWhile(t *testing.T) {
	w := newWorld(t, 2, 5, 3, 100)
	w.run(5 * time.Second)
	w.kill(2)
	w.mute = true
	w.run(2 * time.Second)
	w.want()
	w.mute = false
	w.run(time.Second)
	w.want("10.244.4.10", "10.244.4.11")
}

// A port that stops answering, or never did, says nothing of the other one of its pods,
// though that is not in use.
func TestOnePortOfALivingPod(t *testing.T) {
	for _, c := range []struct {
		what string
		node string // of all endpoints; that of newWorld if empty
		from time.Duration
	}{
		{"ever since", "", 0},
		{"from now on", "", 5 * time.Second},
		{"from now on, of no known node", "none", 5 * time.Second},
	} {
		w := newWorld(t, 2, 5, 3, 100)
		for n := range 5 { // both Services are of the same pods
			w.services[1].endpoints[n].At = netip.AddrPortFrom(endpoint(n, 0), 9090)
			for s := range 2 {
				if c.node != "" {
					w.services[s].endpoints[n].Node = ""
				}
			}
		}
		w.services[1].clients = w.services[0].clients
		w.shut[w.services[1].endpoints[2].At] = c.from == 0
		w.services[1].perSecond = 0
		w.run(5 * time.Second)
		w.services[1].perSecond = 100
		w.run(c.from)
		w.services[0].perSecond = 0
		w.shut[w.services[1].endpoints[2].At] = true
		w.run(10 * time.Second)
		w.want()
		if len(w.verdict) > 0 {
			t.Errorf("%s: %v", c.what, w.verdict)
		}
	}
}

// A SYN that cannot be sent is no silence: it is sent later.
func TestFewSYNsCanBeSent(t *testing.T) {
	w := newWorld(t, 1, 8, 3, 200)
	w.run(5 * time.Second)
	w.room = 0
	w.kill(2)
	w.run(5 * time.Second)
	w.want()
	w.room = 3
	w.run(10 * time.Second)
	w.want("10.244.4.10")
	w.room = 0
	w.revive(2)
	w.run(15 * time.Second)
	w.want("10.244.4.10")
	w.room = 3
	w.run(time.Second)
	w.want()
}

// A pod that comes under suspicion while a case of its node is open is asked on all its
// ports, too: one that answers shows that the node is there.
func TestLateSuspectIsAskedOnAllPorts(t *testing.T) {
	for _, late := range []time.Duration{0, 150 * time.Millisecond, 300 * time.Millisecond} {
		w := newWorld(t, 5, 5, 6, 200)
		w.services = append(w.services, service{frontend: netip.MustParseAddrPort("10.96.0.9:80"), clients: w.services[0].clients})
		for n := range 5 { // another port of the last Service's pods, that is unused
			w.services[5].endpoints = append(w.services[5].endpoints, suspect.Endpoint{At: netip.AddrPortFrom(endpoint(n, 4), 9090), Node: fmt.Sprint("node-", n+2)})
		}
		w.run(5 * time.Second)
		for s := range 4 {
			w.dead[endpoint(2, s)] = true
		}
		w.run(late)
		w.shut[netip.AddrPortFrom(endpoint(2, 4), 8080)] = true
		w.run(10 * time.Second)
		if silent(w.last.Suspects, endpoint(2, 4)) {
			t.Errorf("after %s: %s is ejected though port 9090 answers; %v", late, endpoint(2, 4), w.verdict)
		}
	}
}
