// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// kind is a kind of fault. Those with an F are of the fault plan; F12, F17 and F28
// need a kernel (ci/netns, ci/guest), and in F09 time cannot go backwards here.
type kind struct {
	id, what string
	modes    string // those that it exists in; empty for all
	do       func(*run, *rand.Rand)
}

const (
	onLinux   = "nftables iptables ipvs userspace"
	onWindows = "kernelspace"
)

// some durations, from those too short to notice to those too long to wait for.
func some(rng *rand.Rand) time.Duration {
	return []time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 15 * time.Second, 100 * time.Second}[rng.IntN(6)]
}

var watched = [...]string{"services", "endpointslices", "nodes", "servicecidrs"}

func resource(rng *rand.Rand) string { return watched[rng.IntN(len(watched))] }

// kinds are in the order of the report.
var kinds = []kind{
	{"F01", "API server down", "", apiDown},
	{"F02", "watch hangs", "", watchHangs},
	{"F03", "410 Gone, once or in a storm", "", gone},
	{"F04", "events again and out of order", "", func(r *run, rng *rand.Rand) { r.server.Replay(resource(rng), 5) }},
	{"F05", "endpoints move between slices", "", endpointsMove},
	{"F06", "kinds of objects arrive late at a start", "", arriveLate},
	{"F07", "API server answers with errors, or slowly", "", apiErrors},
	{"F08", "token is rejected", "", func(r *run, rng *rand.Rand) {
		r.server.Accept("another")
		for _, resource := range watched {
			r.server.Cut(resource)
		}
		r.later(some(rng), func() { r.server.Accept() })
	}},
	{"F09", "an hour passes", "", func(*run, *rand.Rand) { time.Sleep(time.Hour) }},
	{"F10", "process ends between two writes", "", crash},
	{"F11", "process is stopped by a signal", "", func(r *run, _ *rand.Rand) {
		if p := r.super.current(); p != nil {
			p.cancel()
		}
	}},
	{"F13", "disk full for the journal", onWindows, diskFull},
	{"F14", "second instance", "", secondInstance},
	{"F15", "single objects deleted", "", func(r *run, rng *rand.Rand) { r.damage(rng, 1+rng.IntN(3)) }},
	{"F16", "everything deleted", "", func(r *run, rng *rand.Rand) { r.damage(rng, 1<<20) }},
	{"F18", "lock held by another program", onLinux, busy},
	{"F19", "tool or kernel module missing", onLinux, func(r *run, rng *rand.Rand) {
		r.plane.trouble(func(t *trouble) { t.absent = true })
		if p := r.super.current(); p != nil && rng.IntN(2) == 0 {
			p.cancel()
		}
		r.later(some(rng), func() { r.plane.trouble(func(t *trouble) { t.absent = false }) })
	}},
	{"F20", "unreadable, interrupted, outcome unknown", "", unreadable},
	{"F21", "single operations fail", "", func(r *run, rng *rand.Rand) {
		r.plane.trouble(func(t *trouble) { t.failing = 1 + rng.IntN(40) })
		r.later(some(rng), func() { r.plane.trouble(func(t *trouble) { t.failing = 0 }) })
	}},
	{"F22", "conntrack cannot be written", onLinux, func(r *run, rng *rand.Rand) {
		r.flows.Store(true)
		r.later(some(rng), func() { r.flows.Store(false) })
	}},
	{"F23", "HNS restarts", onWindows, busy},
	{"F24", "HNS network made again", onWindows, networkAgain},
	{"F25", "pods appear late in HNS", onWindows, podsLate},
	{"F26", "Node or ServiceCIDR changes", "", func(r *run, rng *rand.Rand) {
		r.judge.change(func() ([]model.ServiceName, bool) {
			r.cluster.changeNode(rng)
			return nil, true
		})
	}},
	{"F27", "mode switched, and back", onLinux, switchModes},
	{"F29", "API server restored from a backup", "", restore},
	{"F30", "half-open connections", "", func(r *run, rng *rand.Rand) {
		r.network.lose(true)
		r.later(some(rng), func() { r.network.lose(false) })
	}},
	{"F31", "API server redirects elsewhere", "", func(r *run, rng *rand.Rand) {
		lift := r.server.Fail(apitest.Rule{Status: 302, Location: "http://203.0.113.66/api"})
		r.server.Cut(resource(rng))
		r.later(some(rng), lift)
	}},
	{"F32", "slow writes", onLinux, func(r *run, rng *rand.Rand) {
		r.plane.trouble(func(t *trouble) { t.slow = some(rng) / 20 })
		r.later(some(rng), func() { r.plane.trouble(func(t *trouble) { t.slow = 0 }) })
	}},
}

// in reports whether a kind exists in a mode.
func (k kind) in(m config.Mode) bool {
	return k.modes == "" || slices.Contains(strings.Fields(k.modes), string(m))
}

func (r *run) damage(rng *rand.Rand, most int) {
	r.judge.shake(false)
	r.plane.damage(rng, most)
}

func apiDown(r *run, rng *rand.Rand) {
	r.stopServer()
	if p := r.super.current(); p != nil && rng.IntN(3) == 0 { // it is down at the start of the next process
		p.cancel()
		time.Sleep(5 * time.Second)
		if code, body := r.healthz(); code == 200 {
			r.violate("I9: /healthz answers 200 before anything could be known: %s", body)
		}
	}
	r.later(some(rng), r.startServer)
}

func watchHangs(r *run, rng *rand.Rand) {
	resource := watched[rng.IntN(3)] // ServiceCIDRs can be done without
	can := r.bookmarked(resource)
	frozen, lift := time.Now(), r.server.Freeze(resource)
	if rng.IntN(4) > 0 || !can {
		r.later(some(rng), lift)
		return
	}
	defer lift()
	started := r.super.current()
	const reported = 92 * time.Second
	time.Sleep(reported)
	if alive := r.accepted(resource); alive.After(frozen) {
		time.Sleep(time.Until(alive.Add(reported)))
	}
	if _, body := r.healthz(); started != nil && started == r.super.current() && !strings.Contains(body, "reasons") {
		r.violate("I9: a watch is dead for 92 s, and /healthz does not report it: %s", body)
	}
}

// bookmarked waits until the process that runs has a watch on which a bookmark has come, and reports whether
// that happened: a process that never had one cannot know that a watch without them is dead. A watch from before
// connections became half-open does not count.
func (r *run) bookmarked(resource string) bool {
	const interval = 65 * time.Second
	process, since := r.super.current(), time.Now()
	for begun := since; time.Since(begun) < 5*time.Minute; time.Sleep(time.Second) {
		if now := r.super.current(); now != process {
			process, since = now, time.Now()
		}
		all, serves := r.watches(resource), r.serves()
		if process == nil || len(all) == 0 || serves.IsZero() || time.Since(since) <= interval {
			continue
		}
		last := all[len(all)-1]
		if !last.Failed && !last.At.Before(serves) && last.At.After(r.network.lost()) && time.Since(last.At) > interval {
			return true
		}
	}
	return false
}

// accepted returns when the server last accepted a watch after one whose time was up, which it
// had refused, or since which it was down: it was alive then. The first happens once in five minutes at most: who
// asked for less would hide a watch that is dead.
func (r *run) accepted(resource string) (at time.Time) {
	const least, next = 5 * time.Minute, 5 * time.Second
	watches, serves := r.watches(resource), r.serves()
	for i := 1; i < len(watches); i++ {
		seconds, _ := strconv.Atoi(watches[i-1].Query.Get("timeoutSeconds"))
		asked, took := time.Duration(seconds)*time.Second, watches[i].At.Sub(watches[i-1].At)
		timely := asked >= least && took >= asked && took < asked+next
		if timely || !watches[i].Failed && (watches[i-1].Failed || watches[i-1].At.Before(serves) && !watches[i].At.Before(serves)) {
			at = watches[i].At
		}
	}
	return at
}

// watches are the requests for watches of a resource, but for that of other Nodes: health does
// not depend on it.
func (r *run) watches(resource string) []apitest.Request {
	return slices.DeleteFunc(r.server.Requests("watch", resource), func(q apitest.Request) bool {
		return strings.HasPrefix(q.Query.Get("fieldSelector"), "metadata.name!=")
	})
}

func gone(r *run, rng *rand.Rand) {
	for range 1 + rng.IntN(2)*20 {
		r.server.Compact()
		for _, resource := range watched {
			if rng.IntN(2) == 0 {
				r.server.Tear(resource)
			} else {
				r.server.Cut(resource)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// endpointsMove copies the endpoints of a slice to a new one, and then takes them away
// from the old one, as the EndpointSlice controller does when it repacks slices.
func endpointsMove(r *run, rng *rand.Rand) {
	for _, name := range slices.Sorted(maps.Keys(r.cluster.dir)) {
		from, ok := r.cluster.dir[name].(*discoveryv1.EndpointSlice)
		if !ok || rng.IntN(3) > 0 {
			continue
		}
		to, owner := from.DeepCopy(), []model.ServiceName{{Namespace: from.Namespace, Name: from.Labels[discoveryv1.LabelServiceName]}}
		to.Name += "-again"
		r.judge.change(func() ([]model.ServiceName, bool) {
			r.cluster.put(to)
			return owner, false
		})
		time.Sleep(some(rng) / 10)
		r.judge.change(func() ([]model.ServiceName, bool) {
			r.cluster.remove(from)
			return owner, false
		})
	}
}

func arriveLate(r *run, rng *rand.Rand) {
	lift := r.server.Fail(apitest.Rule{Resource: resource(rng), Hang: true})
	if p := r.super.current(); p != nil {
		p.cancel()
	}
	r.later(some(rng), lift)
}

func apiErrors(r *run, rng *rand.Rand) {
	rule := apitest.Rule{Status: []int{429, 500, 503, 504, 200}[rng.IntN(5)], Message: "boom"}
	switch rule.Status {
	case 429:
		rule.RetryAfter = 1 + rng.IntN(3)
	case 200:
		rule.Status, rule.Message, rule.Delay = 0, "", some(rng)
	case 500:
		rule.Reason = metav1.StatusReasonInternalError
	}
	if rng.IntN(2) == 0 {
		rule.Resource = resource(rng)
	}
	lift := r.server.Fail(rule)
	for _, resource := range watched {
		r.server.Cut(resource)
	}
	r.later(some(rng), lift)
}

// crash ends the process between two writes, and has it write; then the next process,
// and so on.
func crash(r *run, rng *rand.Rand) {
	for range 4 {
		if p := r.super.current(); p != nil {
			p.kill(rng.IntN(1 << rng.IntN(6)))
		}
		for range 1 + rng.IntN(3) {
			r.change(rng)
		}
		if rng.IntN(4) == 0 {
			r.damage(rng, 1<<20) // for hundreds of writes more
		}
		time.Sleep(restartPause + time.Duration(rng.IntN(1000))*time.Millisecond)
	}
}

func secondInstance(r *run, _ *rand.Rand) {
	if r.super.current() == nil {
		return
	}
	c := r.config
	c.HealthAddress = ""
	second, err := r.machine.Open(context.Background(), &c, "second", r.log)
	if err == nil && r.super.current() != nil {
		r.violate("a second instance starts")
	}
	if second != nil {
		second.Close()
	}
}

func busy(r *run, rng *rand.Rand) {
	if r.job.mode == onWindows {
		r.judge.shake(false)
	}
	r.plane.trouble(func(t *trouble) { t.busy = true })
	r.later(some(rng), func() { r.plane.trouble(func(t *trouble) { t.busy = false }) })
}

func unreadable(r *run, rng *rand.Rand) {
	n := 10 + rng.IntN(90)
	set := []func(*trouble){
		func(t *trouble) { t.unreadable = true }, func(t *trouble) { t.interrupted = n }, func(t *trouble) { t.unknown = n },
	}[rng.IntN(3)]
	r.plane.trouble(set)
	if p := r.super.current(); p != nil && rng.IntN(2) == 0 {
		p.cancel()
	}
	r.later(some(rng), func() {
		r.plane.trouble(func(t *trouble) { t.unreadable, t.interrupted, t.unknown = false, 0, 0 })
	})
}

// diskFull has what replaces the journal be written to a disk without room.
func diskFull(r *run, rng *rand.Rand) {
	at := r.plane.(*windows).journal + ".new"
	_ = os.Remove(at)
	if err := os.Symlink("/dev/full", at); err != nil {
		r.violate("%v", err)
	}
	if p := r.super.current(); p != nil && rng.IntN(2) == 0 {
		p.cancel()
	}
	r.later(some(rng), func() { _ = os.Remove(at) })
}

func networkAgain(r *run, rng *rand.Rand) {
	r.judge.shake(false)
	w := r.plane.(*windows)
	w.removeNetwork()
	r.later(some(rng), w.addNetwork)
}

func podsLate(r *run, rng *rand.Rand) {
	r.judge.shake(false)
	w := r.plane.(*windows)
	w.removeNetwork() // with its pods
	w.addNetwork()
	var taken []string
	for _, e := range w.emu.Endpoints() {
		if len(taken) < 3 {
			taken = append(taken, e.IpConfigurations[0].IpAddress)
			w.emu.Remove(e.ID)
		}
	}
	r.later(some(rng), func() {
		for _, a := range taken {
			w.emu.AddPod(w.network, a)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.instance++
	})
}

// switchModes switches to another mode and back; a process that is stopped or crashes
// during the switch need not succeed.
func switchModes(r *run, rng *rand.Rand) {
	p := r.super.current()
	if p == nil {
		return
	}
	r.judge.shake(true)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second+some(rng))
	defer cancel()
	to := r.others[rng.IntN(len(r.others))].mode().Name
	if _, err := p.proxy.Switch(ctx, to, func(string) {}); err != nil {
		r.logf("switch to %s: %v", to, err)
	}
	time.Sleep(some(rng) / 10)
	for range 100 {
		if _, err := p.proxy.Switch(ctx, r.job.mode, func(string) {}); err == nil || p != r.super.current() || strings.Contains(err.Error(), "already") {
			return
		}
		time.Sleep(time.Second)
	}
	p.cancel() // the next one is in the configured mode
}

// restore takes the API server back to what it was some changes ago.
func restore(r *run, rng *rand.Rand) {
	old, back := maps.Clone(r.cluster.dir), r.server.Backup()
	was := r.cluster.now
	for range 1 + rng.IntN(5) {
		r.change(rng)
		time.Sleep(some(rng) / 10)
	}
	r.stopServer()
	r.judge.change(func() ([]model.ServiceName, bool) {
		r.cluster.dir, r.cluster.now = old, was
		r.cluster.node, r.cluster.ranges = old["node"].(*corev1.Node), old["ranges"].(*networkingv1.ServiceCIDR)
		back()
		return nil, true
	})
	r.startServer()
}

// stopServer stops the API server; it may be stopped already.
func (r *run) stopServer() {
	r.serving.Lock()
	defer r.serving.Unlock()
	if r.stopped++; r.stopped == 1 {
		r.server.Stop()
	}
}

// startServer starts it when every fault that stopped it has ended.
func (r *run) startServer() {
	r.serving.Lock()
	defer r.serving.Unlock()
	if r.stopped--; r.stopped > 0 {
		return
	}
	if err := r.server.Restart(); err != nil {
		r.violate("API server: %v", err)
	}
	r.started = time.Now()
}

// serves returns since when the server runs; zero while it is stopped.
func (r *run) serves() (since time.Time) {
	r.serving.Lock()
	defer r.serving.Unlock()
	if r.stopped == 0 {
		since = r.started
	}
	return since
}
