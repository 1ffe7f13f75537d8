// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// windows is an HNS, and the driver's journal on a disk.
type windows struct {
	rng     *rand.Rand
	emu     *hnsemu.Emulator
	network string
	journal string

	mu       sync.Mutex
	process  *process
	trouble_ trouble
	watcher  looker
	left     []byte // the journal, as a process left it that was killed
	was      bool   // one was
	instance uint32
	writes   int
	made     bool // the last call has made a load balancer, and its id is not asked for yet
}

func newWindows(rng *rand.Rand, dir string) *windows {
	w := &windows{rng: rng, emu: hnsemu.New(hnsemu.WS2025), journal: filepath.Join(dir, "journal"), instance: 1}
	w.addNetwork()
	w.emu.Hook(w.called)
	return w
}

// addNetwork makes the network, and in it all pods that this node may have, unless
// another program has done so.
func (w *windows) addNetwork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.network == "" {
		w.network = addNetwork(w.emu)
	}
	w.instance++
}

func (w *windows) removeNetwork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.emu.RemoveNetwork(w.network)
	w.network = ""
}

func addNetwork(e *hnsemu.Emulator) string {
	id := e.AddNetwork("pods", hns.TypeL2Bridge)
	for i := 2; i < 6; i++ {
		e.AddPod(id, fmt.Sprintf("10.244.1.%d", i))
		e.AddPod(id, fmt.Sprintf("fd00:10:244:1::%d", i))
	}
	e.AddPod(id, "192.0.2.1") // those on the node's own network
	e.AddPod(id, "2001:db8::1")
	return id
}

func (w *windows) mode() dataplane.Mode {
	m := hns.Mode()
	m.System, m.Await, m.Remove = "", nil, nil
	m.Probe = func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.trouble_.absent {
			return errInjected
		}
		return nil
	}
	m.Open = func(ctx context.Context, c *config.Config, _ *slog.Logger) (dataplane.Backend, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return hns.Open(ctx, w.emu.Client(), c, settings(w.journal, w.service))
	}
	return m
}

func settings(journal string, instance func() (uint32, error)) hns.Settings {
	return hns.Settings{
		Journal: journal, Log: discard(), Instance: instance,
		MAC: func(netip.Addr) (string, error) { return "00-15-5d-aa-bb-cc", nil },
	}
}

// service identifies one run of the HNS service.
func (w *windows) service() (uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.instance, nil
}

func (w *windows) begin(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.process = p
	if w.was {
		w.was = false
		_ = os.Remove(w.journal + ".new")
		if err := os.WriteFile(w.journal, w.left, 0o600); err != nil {
			panic(err)
		}
	}
}

// killed keeps the journal unchanged and closes the handles of the process.
func (w *windows) killed() {
	w.emu.Down(true)
	w.emu.Down(false)
	w.left, _ = os.ReadFile(w.journal)
	w.was = true
}

// called is asked before each call of HNS.
func (w *windows) called(c *hnsemu.Call) hns.Code {
	const gone, failed = 0x6ba, 0x6be
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.trouble_
	write := slices.Contains([]hnsemu.Verb{hnsemu.Create, hnsemu.Modify, hnsemu.Delete}, c.Verb)
	answer := w.made && c.Kind == hnsemu.LoadBalancer && c.Verb == hnsemu.Query
	w.made = c.Kind == hnsemu.LoadBalancer && c.Verb == hnsemu.Create
	switch {
	case w.process == nil:
		return 0
	case !w.process.alive(), t.absent, t.busy, !write && t.unreadable && c.Verb != hnsemu.Close: // assumed: a handle can be closed whatever cannot be read
		return gone
	case answer && !w.process.step(): // killed before it knows what it has made
		return gone
	case !write:
		return 0
	}
	if w.watcher != nil {
		w.watcher(w.at)
	}
	if !w.process.step() {
		return gone
	}
	w.writes++
	if t.failing > 0 && w.rng.IntN(100) < t.failing {
		return []hns.Code{failed, 0x5b4, 0x803b002c}[w.rng.IntN(3)]
	}
	return 0
}

func (w *windows) at(host *model.Host) decide {
	return hnsemu.VFP{HNS: w.emu, Host: host, Uplink: conformance.Uplink}.Decide
}

func (w *windows) watch(f looker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watcher = f
}

func (w *windows) now(host *model.Host) decide { return w.at(host) }

func (w *windows) fresh(host *model.Host, ports []*model.Port) decide {
	e := hnsemu.New(hnsemu.WS2025)
	addNetwork(e)
	c := config.Default()
	b, err := hns.Open(context.Background(), e.Client(), &c, settings("", nil))
	if err != nil {
		panic(err)
	}
	defer b.Close()
	b.SetHost(host)
	if err := b.Adopt(context.Background()); err != nil {
		panic(err)
	}
	var all []model.Delta
	for _, p := range ports {
		all = append(all, model.Delta{New: p})
	}
	b.Update(all)
	if _, err := dataplane.SyncAll(context.Background(), b); err != nil {
		panic(err)
	}
	return hnsemu.VFP{HNS: e, Host: host, Uplink: conformance.Uplink}.Decide
}

func (w *windows) state() (objects, writes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	remote := 0
	for _, e := range w.emu.Endpoints() {
		if e.Flags&hns.FlagRemote != 0 {
			remote++
		}
	}
	return len(w.emu.Balancers()) + remote, w.writes
}

func (w *windows) trouble(f func(*trouble)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.trouble_.busy
	f(&w.trouble_)
	if w.trouble_.busy && !before { // the service is stopped, and its handles are lost
		w.instance++
		w.emu.Down(true)
		w.emu.Down(false)
	}
}

func (w *windows) damage(rng *rand.Rand, most int) {
	var ids []string
	for _, b := range w.emu.Balancers() {
		ids = append(ids, b.ID)
	}
	rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	w.emu.Remove(ids[:min(most, len(ids))]...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instance++
}
