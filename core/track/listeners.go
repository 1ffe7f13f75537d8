// SPDX-License-Identifier: Apache-2.0

package track

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Ask returns on which of some places processes of this node listen. An error is that it cannot be
// told of any.
type Ask func(places []model.Listener) ([]model.Listener, error)

// listening is what is known of processes that listen where Services ask for this node's own
// addresses. It costs nothing while none does.
type listening struct {
	ask  Ask                   // nil where nobody can tell: the host may know
	own  map[*service]struct{} // that ask for such addresses
	held []model.Listener      // sorted
}

// KeepListeners has the places asked about: those of a Service when it changes, and all at Recheck.
func (t *Tracker) KeepListeners(ask Ask) {
	t.listening = listening{ask: ask, own: map[*service]struct{}{}}
}

// checkNew asks about the places of changed Services before they are resolved.
func (t *Tracker) checkNew() {
	l := &t.listening
	if l.ask == nil {
		return
	}
	var places []model.Listener
	for _, s := range t.dirty {
		if !s.claimsStale {
			continue
		}
		asked := resolve.AsksOwn(t.host, s.Object)
		if len(asked) == 0 {
			delete(l.own, s)
			continue
		}
		l.own[s] = struct{}{}
		places = append(places, asked...)
	}
	if len(places) == 0 {
		return
	}
	found, err := l.ask(places)
	if err != nil { // not known is not free
		found = places
		for i := range found {
			found[i].Name = "process, maybe (" + err.Error() + "),"
		}
	}
	t.hold(merged(l.held, places, found))
}

// merged is what is held once some places were asked about.
func merged(held, asked, found []model.Listener) []model.Listener {
	of := make(map[model.Listener]struct{}, len(asked))
	for _, p := range asked {
		of[model.Listener{Proto: p.Proto, At: p.At}] = struct{}{}
	}
	all := slices.DeleteFunc(slices.Clone(held), func(h model.Listener) bool {
		_, again := of[model.Listener{Proto: h.Proto, At: h.At}]
		return again
	})
	all = append(all, found...)
	slices.SortFunc(all, model.Listener.Compare)
	return slices.CompactFunc(all, func(a, b model.Listener) bool { return a.Compare(b) == 0 })
}

// Recheck asks again about all places, and reports whether a Service may come out differently. After
// an error what was known stays.
func (t *Tracker) Recheck() (changed bool, err error) {
	l := &t.listening
	if len(l.own) == 0 {
		return false, nil
	}
	var places []model.Listener
	for s := range l.own {
		places = append(places, resolve.AsksOwn(t.host, s.Object)...)
	}
	found, err := l.ask(places)
	if err != nil {
		return false, err
	}
	return t.hold(merged(nil, nil, found)), nil
}

// hold takes what is held, and marks the Services that can come out differently.
func (t *Tracker) hold(held []model.Listener) (changed bool) {
	if slices.Equal(held, t.listening.held) {
		return false
	}
	t.listening.held = held
	old := t.host
	t.configured, t.host = t.withListeners(t.configured), t.withListeners(t.host)
	for s := range t.listening.own {
		if s.Object != nil && resolve.Affects(old, t.host, s.Object, nil) {
			s.claimsStale = true
			t.mark(s)
			changed = true
		}
	}
	return changed
}

// withListeners is a host that knows what is held.
func (t *Tracker) withListeners(host *model.Host) *model.Host {
	if t.listening.ask == nil || host == nil {
		return host
	}
	more := *host
	more.Guard.Listeners = &model.Listeners{All: t.listening.held}
	return &more
}
