package dataplane

import (
	"context"
	"iter"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// Inspection is an audit that changes need not wait for. Read comes first, then
// Compare until there is no more. The backend works on meanwhile.
type Inspection interface {
	// Read reads the data plane back. It is called on a goroutine of its own.
	Read(context.Context)

	// Compare looks at some of what was read, a millisecond's work or so, and is
	// called like the backend's methods. Without more to come it tells how many
	// objects were not as they were left, or why that could not be read.
	Compare() (drift int, more bool, err error)

	// Close gives up what is left to compare, and may come after the end.
	Close()
}

type inspection[K comparable, V any] struct {
	backend *backend[K, V]
	have    map[K]V
	err     error
	drift   int
	next    func() (struct{}, bool) // nil before the first step
	stop    func()
}

func (b *backend[K, V]) Inspect() Inspection {
	b.inspecting = true
	b.ledger.Watch()
	return &inspection[K, V]{backend: b}
}

func (i *inspection[K, V]) Read(ctx context.Context) { i.have, i.err = i.backend.driver.Observe(ctx) }

func (i *inspection[K, V]) Compare() (drift int, more bool, err error) {
	if i.err != nil {
		i.backend.inspecting = false
		i.backend.ledger.Unwatch()
		return 0, false, i.err
	}
	if i.next == nil {
		i.next, i.stop = iter.Pull(i.backend.compare(i.have, &i.drift))
	}
	_, more = i.next()
	i.backend.inspecting = more
	return i.drift, more, nil
}

func (i *inspection[K, V]) Close() {
	if i.stop != nil {
		i.stop()
	}
}

func (b *backend[K, V]) Audit(ctx context.Context) (drift int, err error) {
	have, err := b.driver.Observe(ctx)
	if err != nil {
		return 0, err
	}
	b.unknown = false
	for range b.compare(have, &drift) {
	}
	return drift, nil
}

// compare takes what was read back and counts how much of it is news. It pauses
// now and then, and the backend may be used then.
func (b *backend[K, V]) compare(have map[K]V, drift *int) iter.Seq[struct{}] {
	return func(pause func(struct{}) bool) {
		review := b.ledger.Review(have)
		for range review.Steps() {
			if !pause(struct{}{}) {
				return
			}
		}
		for range b.attribute(review) {
			if !pause(struct{}{}) {
				return
			}
		}
		*drift = review.Enter()
	}
}

// attribute finds the ports that what has drifted belongs to. Of ports that
// change in a pause it may miss one: that port's repair stands for itself then.
func (b *backend[K, V]) attribute(review *ledger.Review[K, V]) iter.Seq[struct{}] {
	return func(pause func(struct{}) bool) {
		nameless, seen := len(review.Drifted), 0
		for port := range b.ports {
			if nameless == 0 {
				return
			}
			b.compiler.Port(b.host, port, func(k K, _ V) {
				seen++
				if owner, drifted := review.Drifted[k]; drifted && owner == nil {
					review.Drifted[k] = &port.ID
					nameless--
				}
			})
			if seen >= ledger.Step {
				seen = 0
				if !pause(struct{}{}) {
					return
				}
			}
		}
	}
}
