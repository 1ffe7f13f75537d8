// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// store holds objects and the log of their changes. It is safe for concurrent
// use. What it holds is never changed.
type store struct {
	mu      sync.Mutex
	version uint64
	gone    uint64 // changes up to this version are forgotten
	objects map[string]map[string]runtime.Object
	log     []change
	wake    chan struct{} // closed by the next change
}

// change is one change of one object.
type change struct {
	version   uint64
	resource  string
	old, next runtime.Object // nil before it is created, and after it is deleted
}

func newStore() *store {
	return &store{version: 100, gone: 100, objects: map[string]map[string]runtime.Object{}, wake: make(chan struct{})}
}

// put creates or replaces an object, and returns its version.
func (s *store) put(o runtime.Object) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	o = o.DeepCopyObject()
	r, key := kindOf(o), keyOf(o)
	s.version++
	setVersion(o, s.version)
	if s.objects[r] == nil {
		s.objects[r] = map[string]runtime.Object{}
	}
	s.note(change{s.version, r, s.objects[r][key], o})
	s.objects[r][key] = o
	return s.version
}

// delete removes an object if it is there.
func (s *store) delete(o runtime.Object) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, key := kindOf(o), keyOf(o)
	old := s.objects[r][key]
	if old == nil {
		return s.version
	}
	s.version++
	delete(s.objects[r], key)
	s.note(change{s.version, r, old, nil})
	return s.version
}

func (s *store) note(c change) {
	s.log = append(s.log, c)
	close(s.wake)
	s.wake = make(chan struct{})
}

// latest returns the version of the last change.
func (s *store) latest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// compact forgets the log.
func (s *store) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone, s.log = s.version, nil
}

// restore goes back to a version, as from a backup of etcd: later changes are lost.
func (s *store) restore(version uint64, objects []runtime.Object) {
	s.mu.Lock()
	s.version, s.gone, s.log, s.objects = version, version, nil, map[string]map[string]runtime.Object{}
	s.mu.Unlock()
	for _, o := range objects {
		s.put(o)
	}
}

// backup returns what goes back to this moment: objects keep the versions that they
// have now, and those of changes that are undone are used again.
func (s *store) backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, objects := s.version, map[string]map[string]runtime.Object{}
	for r, all := range s.objects {
		objects[r] = maps.Clone(all)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.version, s.gone, s.log, s.objects = version, version, nil, objects
	}
}

// snapshot returns the objects of a kind that a selector matches, by name, and
// the version they are of.
func (s *store) snapshot(r string, sel selector) (objects []runtime.Object, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[r] {
		if sel.matches(o) {
			objects = append(objects, o)
		}
	}
	slices.SortFunc(objects, func(a, b runtime.Object) int { return strings.Compare(keyOf(a), keyOf(b)) })
	return objects, s.version
}

// exactly returns the objects of a kind that a selector matches as they were at a version;
// ok is false when that is forgotten.
func (s *store) exactly(r string, sel selector, version uint64) (objects []runtime.Object, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.gone {
		return nil, false
	}
	then := maps.Clone(s.objects[r])
	for _, c := range slices.Backward(s.log) {
		switch {
		case c.version <= version || c.resource != r:
		case c.old == nil:
			delete(then, keyOf(c.next))
		default:
			then[keyOf(c.old)] = c.old
		}
	}
	for _, o := range then {
		if sel.matches(o) {
			objects = append(objects, o)
		}
	}
	return objects, true
}

// since returns the changes of a kind after a version, the version they reach
// to, and what is closed when there are more. ok is false when some are
// forgotten.
func (s *store) since(r string, version uint64) (cs []change, now uint64, wake <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.gone {
		return nil, 0, nil, false
	}
	first, _ := slices.BinarySearchFunc(s.log, version+1, func(c change, v uint64) int { return int(c.version) - int(v) })
	for _, c := range s.log[first:] {
		if c.resource == r {
			cs = append(cs, c)
		}
	}
	return cs, s.version, s.wake, true
}

// event returns the event that a watch with a selector gets of a change, if any.
func (c change) event(sel selector) (e apiwatch.Event, ok bool) {
	was, is := c.old != nil && sel.matches(c.old), c.next != nil && sel.matches(c.next)
	switch {
	case is && was:
		return apiwatch.Event{Type: apiwatch.Modified, Object: c.next}, true
	case is:
		return apiwatch.Event{Type: apiwatch.Added, Object: c.next}, true
	case was:
		o := c.old.DeepCopyObject()
		setVersion(o, c.version)
		return apiwatch.Event{Type: apiwatch.Deleted, Object: o}, true
	}
	return e, false
}

// selector chooses objects by labels and by fields of their metadata.
type selector struct {
	labels labels.Selector
	fields fields.Selector
}

func everything() selector { return selector{labels.Everything(), fields.Everything()} }

func (s selector) matches(o runtime.Object) bool {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	known := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	if svc, ok := o.(*corev1.Service); ok {
		known["spec.clusterIP"], known["spec.type"] = svc.Spec.ClusterIP, string(svc.Spec.Type)
	}
	return s.labels.Matches(labels.Set(m.GetLabels())) && s.fields.Matches(known)
}

func keyOf(o runtime.Object) string {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	return m.GetNamespace() + "/" + m.GetName()
}

func setVersion(o runtime.Object, version uint64) {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	m.SetResourceVersion(strconv.FormatUint(version, 10))
}
