// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"log/slog"
	"sync"
	"time"
)

// Draining destinations are checked every drainCheck, and deleted after drainLimit in
// any case: then IPVS itself expires an idle TCP connection.
const (
	drainCheck = 2 * time.Second
	drainLimit = 15 * time.Minute
)

// drains are destinations that get no new connections (weight 0) and are deleted when
// they have none left. The kernel's weights are the only record: after a restart they
// are found there, and drainLimit starts again.
type drains struct {
	log    *slog.Logger
	kernel *sockets
	marks  *fwmarks
	quit   chan struct{}
	done   chan struct{}
	now    func() time.Time

	mu        sync.Mutex
	deadlines map[Key]map[Key]time.Time // by virtual server
	failing   bool                      // the last check failed
}

func startDrains(k *sockets, marks *fwmarks, log *slog.Logger) *drains {
	d := &drains{
		log:    log,
		kernel: k, marks: marks, now: time.Now, deadlines: map[Key]map[Key]time.Time{},
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	go d.run()
	return d
}

func (d *drains) run() {
	defer close(d.done)
	tick := time.NewTicker(drainCheck)
	defer tick.Stop()
	for {
		select {
		case <-d.quit:
			return
		case <-tick.C:
			d.check()
		}
	}
}

func (d *drains) stop() {
	close(d.quit)
	<-d.done
	d.kernel.close()
}

// add adds a destination whose weight is 0.
func (d *drains) add(dest Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	server := dest.serverOf()
	if d.deadlines[server] == nil {
		d.deadlines[server] = map[Key]time.Time{}
	}
	if _, known := d.deadlines[server][dest]; !known {
		d.deadlines[server][dest] = d.now().Add(drainLimit)
	}
}

// cancel removes a destination, and reports whether it was draining.
func (d *drains) cancel(dest Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	server := dest.serverOf()
	_, draining := d.deadlines[server][dest]
	delete(d.deadlines[server], dest)
	return draining
}

// forget removes all destinations of a virtual server.
func (d *drains) forget(server Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.deadlines, server)
}

// check deletes destinations that are idle or past their deadline. It handles one
// virtual server at a time, so that a Commit never waits for long. Failures are
// retried by the next check; only the first one is logged.
func (d *drains) check() {
	d.mu.Lock()
	servers := make([]Key, 0, len(d.deadlines))
	for server := range d.deadlines {
		servers = append(servers, server)
	}
	d.mu.Unlock()
	var failed error
	for _, server := range servers {
		if err := d.checkServer(server); err != nil && failed == nil {
			failed = wrap(server.String(), err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if failed != nil && !d.failing {
		d.log.Warn("checking draining IPVS destinations failed", "mode", Name, "err", failed, "retry", drainCheck)
	}
	d.failing = failed != nil
}

func (d *drains) checkServer(server Key) (failed error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.deadlines[server]) == 0 {
		delete(d.deadlines, server)
		return nil
	}
	id, known := d.marks.known(server)
	if !known { // deleted by a Commit while Observe had read its destinations
		delete(d.deadlines, server)
		return nil
	}
	have, err := d.kernel.servers.Destinations(id)
	if err != nil {
		return err
	}
	left := map[Key]bool{}
	for _, dest := range have {
		k := server.dest(dest.Addr)
		until, draining := d.deadlines[server][k]
		if !draining || dest.Weight != 0 {
			continue
		}
		if dest.Connections > 0 && d.now().Before(until) {
			left[k] = true
			continue
		}
		if err := d.kernel.servers.DeleteDestination(id, dest.Addr); err != nil {
			left[k], failed = true, err
		}
	}
	for k := range d.deadlines[server] {
		if !left[k] {
			delete(d.deadlines[server], k)
		}
	}
	return failed
}
