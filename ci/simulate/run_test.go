// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/platform"
)

// The bounds of a run, in its own time.
const (
	settleLimit = 6 * time.Minute  // until all is right, once all faults are over
	lingers     = 3 * time.Minute  // until unused objects are gone
	quiet       = 20 * time.Minute // in which nothing is written, several audits included
	auditEvery  = 5 * time.Minute
)

// step is one of a plan.
type step struct {
	kind  string // of a fault; empty for a change
	seed  uint64
	pause time.Duration // after it
}

func (s step) String() string {
	return fmt.Sprintf("%s(%d) %s", map[bool]string{true: "change", false: s.kind}[s.kind == ""], s.seed, s.pause)
}

// job is a run with a unique name.
type job struct {
	mode config.Mode
	kind string // F21, F01+F10
	seed uint64
}

// result is what has come of a run.
type result struct {
	violations []string
	log        string
	faults     int
	crashes    int
	packets    int
	writes     int
	slowest    time.Duration // from the end of all faults until all was right
}

// run is one run.
type run struct {
	job     job
	rng     *rand.Rand
	config  config.Config
	log     *slog.Logger
	text    *bytes.Buffer
	network *network
	server  *apitest.Server
	cluster *cluster
	plane   plane
	others  []plane // those of the other modes of Linux
	machine platform.Simulation
	super   *supervisor
	judge   *judge
	flows   atomic.Bool // conntrack cannot be written
	clean   int         // so many writes the first cleanup lives to do; -1 is forever
	serving sync.Mutex  // of these two
	stopped int         // how many have stopped the API server
	started time.Time   // when that was last started

	mu         sync.Mutex
	violations []string
	faults     int
	lifts      []func()
	begin      time.Time
}

func (r *run) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.violations) < 5 {
		r.violations = append(r.violations, fmt.Sprintf("%s: ", time.Since(r.begin))+fmt.Sprintf(format, args...))
	}
}

func (r *run) logf(format string, args ...any) { r.log.Info(fmt.Sprintf(format, args...)) }

// later undoes something after a while, or at the end of the plan.
func (r *run) later(d time.Duration, lift func()) {
	once := sync.OnceFunc(lift)
	time.AfterFunc(d, once)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lifts = append(r.lifts, once)
}

func (r *run) Delete(context.Context, []flows.Match, func(flows.Flow) bool) (int, error) {
	if r.flows.Load() {
		return 0, errInjected
	}
	return 0, nil
}

// play plays a plan in a bubble of virtual time.
func play(t *testing.T, j job, plan []step, verbose bool) (res result) {
	return playOn(t, j, plan, verbose, func(p plane) plane { return p })
}

// playOn plays a plan on a data plane that is changed before.
func playOn(t *testing.T, j job, plan []step, verbose bool, changed func(plane) plane) (res result) {
	return inBubble(t, j, verbose, changed, func(r *run) result { return r.play(plan) })
}

// inBubble makes a run in a bubble of virtual time.
func inBubble(t *testing.T, j job, verbose bool, changed func(plane) plane, do func(*run) result) (res result) {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t, j, dir, verbose, changed)
		res = do(r)
		if verbose {
			res.log = r.text.String()
		}
	})
	return res
}

func newRun(t *testing.T, j job, dir string, verbose bool, changed func(plane) plane) *run {
	rng := conformance.NewRand(j.seed)
	r := &run{job: j, rng: rng, config: randomConfig(rng), network: newNetwork(), text: &bytes.Buffer{}, log: discard(), clean: -1, begin: time.Now(), started: time.Now()}
	if verbose {
		r.log = slog.New(slog.NewTextHandler(&lockedWriter{w: r.text}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r.config.Mode = j.mode
	r.plane = changed(newPlane(j.mode, rng, dir))
	all := []plane{r.plane}
	if j.mode != modes[len(modes)-1] {
		for _, m := range modes[:len(modes)-1] {
			if m != j.mode {
				r.others = append(r.others, newPlane(m, rng, dir))
			}
		}
		all = append(all, r.others...)
	}
	r.judge = &judge{run: r, rng: rng, touched: map[model.ServiceName]bool{}}
	r.plane.watch(r.judge.look)
	server, err := apitest.Start(apitest.Options{
		Plain: true, NoWatchList: rng.IntN(3) == 0, NoCache: rng.IntN(4) == 0, Bookmarks: time.Minute,
		Listen: func() (net.Listener, error) { return r.network.listen(t.Context(), "tcp", apiServer.String()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server = server
	r.cluster = newCluster(server, &r.config, rng)
	r.judge.worlds = []*world{r.cluster.world()}
	held := &lock{}
	r.machine = platform.Simulation{
		Lock: held.take, Control: control(r.network), Listen: r.network.listen, Dial: r.network.dial, Flows: r,
		Addresses: func() ([]model.LocalAddress, error) { return machineFacts().Addresses, nil },
	}
	for _, p := range all {
		r.machine.Modes = append(r.machine.Modes, p.mode())
	}
	r.super = &supervisor{run: r, fuse: -1, done: make(chan struct{})}
	return r
}

func randomConfig(rng *rand.Rand) config.Config {
	c := config.Default()
	c.NodeName = conformance.NodeName
	c.API.Server = "http://" + apiServer.String()
	c.HealthAddress, c.HTTPAddress = "127.0.0.1:10256", ""
	c.AuditPeriod = auditEvery
	c.DetectLocal = config.DetectNodeCIDR
	c.MasqueradeAll = rng.IntN(5) == 0
	c.NodePorts.Primary = rng.IntN(3) == 0
	c.NodePorts.Loopback = new(rng.IntN(3) == 0)
	return c
}

// play returns what has come of a plan.
func (r *run) play(plan []step) (res result) {
	var slowest time.Duration
	res = r.live(func() {
		r.settle("start", settleLimit)
		for _, s := range plan {
			r.do(s)
			time.Sleep(s.pause)
			if s.pause >= 2*time.Second {
				r.judge.rest()
			}
		}
		for _, lift := range r.lifts {
			lift()
		}
		end := time.Now()
		r.settle("end", settleLimit)
		slowest = time.Since(end)
		r.rest()
	})
	res.slowest = slowest
	return res
}

// live has processes run, one after the other, while f acts. Then it stops the last one,
// cleans up and ends everything else.
func (r *run) live(f func()) (res result) {
	ctx, cancel := context.WithCancel(context.Background())
	go r.super.loop(ctx)
	f()
	cancel()
	<-r.super.done
	if len(r.violations) == 0 {
		r.cleanUp()
	}
	r.server.Stop()
	r.network.lose(true)
	synctest.Wait()
	_, res.writes = r.plane.state()
	res.violations, res.faults, res.crashes, res.packets = r.violations, r.faults, r.super.crashes, r.judge.packets
	return res
}

// do does one step.
func (r *run) do(s step) {
	rng := conformance.NewRand(s.seed)
	if s.kind == "" {
		r.change(rng)
		return
	}
	r.logf("fault %s", s.kind)
	r.faults++
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.id == s.kind })
	kinds[i].do(r, rng)
}

// change changes one object, mostly.
func (r *run) change(rng *rand.Rand) {
	for range 1 + rng.IntN(2)*rng.IntN(4) {
		r.judge.change(func() ([]model.ServiceName, bool) { return r.cluster.change(rng) })
	}
}

// settle waits until everything is as desired.
func (r *run) settle(when string, limit time.Duration) {
	if len(r.violations) > 0 {
		return
	}
	differs, seen := "nothing was looked at", -1
	for begin := time.Now(); time.Since(begin) < limit; time.Sleep(pollEvery(time.Since(begin))) {
		if _, writes := r.plane.state(); writes != seen || differs == "" {
			seen = writes
			differs = r.judge.right()
		}
		if differs == "" && r.served() && r.judge.settled() {
			r.replays(when)
			return
		}
	}
	if differs == "" {
		differs = "the proxy does not know all there is, or is not synced"
	}
	r.violate("I4: %s: not right after %s: %s", when, limit, differs)
}

func pollEvery(waited time.Duration) time.Duration {
	return min(50*time.Millisecond+waited/8, 5*time.Second)
}

// replays checks that a snapshot of the process that runs means what that has resolved.
func (r *run) replays(when string) {
	p := r.super.current()
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if same, settled, err := p.proxy.Replays(ctx); err == nil && settled && !same {
		r.violate("I13: %s: a snapshot is resolved to other ports than the proxy has", when)
	}
}

// served reports whether a running process reports everything programmed.
func (r *run) served() bool {
	p := r.super.current()
	return p != nil && p.proxy.Status().Synced
}

// knows reports whether the process that runs has the Services and slices of a world, and nothing else is on its
// way: what was changed and undone before it has heard of either will still happen to it. A process
// that will be started gets them before it writes anything.
func (r *run) knows(w *world) bool {
	p := r.super.current()
	if p == nil {
		return true
	}
	if !r.server.Delivered("services") || !r.server.Delivered("endpointslices") {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	known, err := p.proxy.Snapshot(ctx)
	if err != nil || len(known.Services) != len(w.services) {
		return false
	}
	n := 0
	for _, s := range known.Services {
		is := w.services[s.Object.Name]
		if is == nil || !reflect.DeepEqual(withoutVersion(s.Object), withoutVersion(is)) {
			return false
		}
		for _, slice := range s.Slices {
			n++
			if is := w.slices[slice.Name]; is == nil || !reflect.DeepEqual(withoutVersion(slice), withoutVersion(is)) {
				return false
			}
		}
	}
	for _, slice := range w.slices {
		if w.services[slice.Owner()] != nil {
			n--
		}
	}
	return n == 0
}

// withoutVersion copies a Service or slice without what an API server adds to it.
func withoutVersion(o any) any {
	switch o := o.(type) {
	case *model.Service:
		copied := *o
		copied.Version, copied.Created = 0, o.Created.UTC()
		return copied
	case *model.Slice:
		copied := *o
		copied.Version = 0
		return copied
	}
	return nil
}

// rest demands that nothing happens when nothing changes.
func (r *run) rest() {
	if len(r.violations) > 0 {
		return
	}
	time.Sleep(lingers)
	_, before := r.plane.state()
	time.Sleep(quiet)
	if _, after := r.plane.state(); after != before {
		r.violate("I6: %d writes within %s without a change", after-before, quiet)
	}
	if d := r.judge.right(); d != "" {
		r.violate("I7: %s later: %s", quiet, d)
	}
	if code, body := r.healthz(); code != http.StatusOK {
		r.violate("I9: /healthz answers %d: %s", code, body)
	}
	for _, p := range r.others {
		if n, _ := p.state(); n > 0 {
			r.violate("I5: %d objects are left in mode %s", n, p.mode().Name)
		}
	}
}

// healthz requests the proxy's health.
func (r *run) healthz() (code int, body string) {
	client := http.Client{Transport: &http.Transport{DialContext: r.network.dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	res, err := client.Get("http://" + r.config.HealthAddress + "/healthz")
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	all, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(all)
}

// cleanUp demands that a cleanup leaves nothing, also where an earlier one was killed,
// and that another one works.
func (r *run) cleanUp() {
	r.judge.shake(true)
	if killed := newProcess(r.clean, func() {}, r.plane.killed); killed.fuse >= 0 {
		r.plane.begin(killed)
		_ = r.plane.mode().Clear(context.Background(), &r.config)
		if killed.burned {
			r.super.crashes++
		}
	}
	r.plane.begin(newProcess(-1, func() {}, func() {}))
	for range 2 {
		if err := r.plane.mode().Clear(context.Background(), &r.config); err != nil {
			r.violate("I12: cleanup: %v", err)
		}
		if n, _ := r.plane.state(); n > 0 {
			r.violate("I12: %d objects are left by a cleanup", n)
		}
	}
	if w, ok := r.plane.(*windows); ok {
		if err := w.emu.Check(); err != nil {
			r.violate("I5: HNS: %v", err)
		}
	}
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}
