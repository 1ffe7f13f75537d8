// SPDX-License-Identifier: Apache-2.0

// Package history records the last changes: what was received, what it rewrote, how long
// each stage took, and what failed.
//
//	engine ──Arrived──▶ ring of Change ┐
//	       ──Synced───▶ ring of Sync   ┴──Find──▶ Document ──▶ tandem history, snapshot, /ui
//
// Both rings are bounded, in number and in bytes, and grow in blocks, so that an idle
// proxy pays for none of it. An append allocates nothing but one block in 500, and
// nothing at all once the ring is full.
package history

import (
	"strings"
	"sync"
)

// Most is how many changes, and how many syncs, are remembered.
const Most = 10_000

// The bounds of texts: longer ones are cut.
const (
	maxName   = 253 // of the API for names of objects
	maxDetail = 300
)

// Recorder is the history of a running proxy. It is safe for concurrent use: one
// goroutine writes and never waits for a reader longer than it takes to copy a
// block.
type Recorder struct {
	mu      sync.Mutex
	changes ring[Change]
	syncs   ring[Sync]
}

// Arrived records a change and numbers it.
func (r *Recorder) Arrived(c Change) {
	c.Namespace, c.Name, c.Service, c.Detail = cut(c.Namespace, maxName), cut(c.Name, maxName), cut(c.Service, maxName), cut(c.Detail, maxDetail)
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Number = r.changes.next()
	r.changes.append(c)
}

// Synced records a sync of all changes that arrived since the one before.
func (r *Recorder) Synced(s Sync) {
	s.Err = cut(s.Err, maxDetail)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.From, s.To = 1, r.changes.next()
	if last := r.syncs.last(); last != nil {
		s.From = last.To
	}
	s.Number = r.syncs.next()
	r.syncs.append(s)
}

// Waiting reports whether changes have arrived since the last sync.
func (r *Recorder) Waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.syncs.last()
	return r.changes.count > 0 && (last == nil || last.To < r.changes.next())
}

// cut copies what is left of a text that is too long, so that the rest is not kept.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.Clone(strings.ToValidUTF8(s[:most], ""))
}

// blockLength is how many records are allocated, and copied for a reader, at a time.
const blockLength = 500

// ring holds the last Most records, the one of number n in place (n-1) % Most.
type ring[T any] struct {
	blocks [Most / blockLength]*[blockLength]T
	count  uint64 // appended so far
}

// next is the number of the next record.
func (r *ring[T]) next() uint64 { return r.count + 1 }

func (r *ring[T]) append(v T) {
	place := r.count % Most
	block := &r.blocks[place/blockLength]
	if *block == nil {
		*block = new([blockLength]T)
	}
	(*block)[place%blockLength] = v
	r.count++
}

// last is the newest record; nil before the first.
func (r *ring[T]) last() *T {
	if r.count == 0 {
		return nil
	}
	return r.get(r.count)
}

// get is the record of a number that is still there.
func (r *ring[T]) get(number uint64) *T {
	place := (number - 1) % Most
	return &r.blocks[place/blockLength][place%blockLength]
}

// oldest is the number of the oldest record that is there, or of the next one.
func (r *ring[T]) oldest() uint64 {
	if r.count > Most {
		return r.count - Most + 1
	}
	return 1
}

// copyAll copies all records, oldest first, and takes the lock for one block at a
// time. Records overwritten meanwhile are left out.
func copyAll[T any](mu *sync.Mutex, r *ring[T]) []T {
	mu.Lock()
	at, end := r.oldest(), r.next()
	mu.Unlock()
	all := make([]T, 0, end-at)
	for at < end {
		mu.Lock()
		at = max(at, r.oldest())
		for n := 0; n < blockLength && at < end; n++ {
			all = append(all, *r.get(at))
			at++
		}
		mu.Unlock()
	}
	return all
}
