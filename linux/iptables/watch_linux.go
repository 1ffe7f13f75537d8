package iptables

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// watch tells cheaply whether somebody else wrote to our tables. The kernel
// counts the transactions of nf_tables; of the legacy tables it tells how many
// rules they have and in how many bytes.
type watch struct {
	look     func() (stamp, error)
	stop     func() error
	counts   bool // stamps are numbers of transactions
	expected stamp
	before   stamp         // a write of our own
	lost     bool          // expected is not what we should expect
	again    time.Duration // see readShare; 0 is never
	readAt   time.Time
	readTook time.Duration
}

// stamp is what is cheap to know of the kernel's tables.
type stamp struct {
	generation uint32
	tables     [2][2]tableInfo
}

func openWatch(v Variant, families []model.Family) (*watch, error) {
	if v == NFT {
		return openGeneration()
	}
	return openInfo(families)
}

// unwatched is for a driver whose tables nobody asks about.
func unwatched() *watch {
	return &watch{look: func() (stamp, error) { return stamp{}, nil }, stop: func() error { return nil }}
}

func (w *watch) close() error { return w.stop() }

// suspect makes the next question be answered with yes.
func (w *watch) suspect() { w.lost = true }

func (w *watch) beforeWrite() {
	now, err := w.look()
	w.lost = w.lost || err != nil || now != w.expected
	w.before = now
}

// afterWrite follows n transactions of our own.
func (w *watch) afterWrite(n int) {
	now, err := w.look()
	w.lost = w.lost || err != nil || w.counts && now.generation-w.before.generation != uint32(n)
	w.expected = now
}

func (w *watch) beforeRead() {
	now, err := w.look()
	w.expected, w.lost = now, err != nil
	w.readAt = time.Now()
}

func (w *watch) afterRead() { w.readTook = time.Since(w.readAt) }

// The legacy variant does not show changes that leave the size of a table as it
// is, and nothing but reading all of it does. So it is read again as often as
// kube-proxy's syncPeriod says, but for no more than one
// part in readShare of the time. With 10,000 Services of five endpoints it takes
// 0.2 s of iptables-save and twice that to compare.
const (
	readAgain = 30 * time.Second // where nothing else is said
	readShare = 200
)

func (w *watch) disturbed() (bool, error) {
	if w.lost || !w.counts && w.again > 0 && time.Since(w.readAt) > max(w.again, readShare*w.readTook) {
		return true, nil
	}
	now, err := w.look()
	if err != nil {
		return false, fmt.Errorf("iptables: look for changes of others: %w", err)
	}
	return now != w.expected, nil
}

var errAnswer = errors.New("an answer that makes no sense")
