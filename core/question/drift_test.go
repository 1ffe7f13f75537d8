// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/question"
)

// Programs that have written are named as what is known of them: nobody is accused for want of a
// record of others.
func TestDriftNamesCandidates(t *testing.T) {
	at := time.Date(2026, 11, 22, 8, 7, 34, 0, time.UTC)
	nft, firewalld := engine.Writer{Name: "nft", PID: 7, At: at}, engine.Writer{Name: "firewalld", PID: 9, At: at}
	for _, c := range []struct {
		by   engine.Candidates
		want string
	}{
		{engine.Candidates{}, ""},
		{engine.Candidates{Incomplete: true}, ""},
		{engine.Candidates{Writers: []engine.Writer{nft}}, "by      nft (thread 7) at 08:07:34"},
		{engine.Candidates{Writers: []engine.Writer{nft, firewalld}}, "by      one of nft (thread 7) at 08:07:34, firewalld (thread 9) at 08:07:34"},
		{engine.Candidates{Writers: []engine.Writer{nft}, Incomplete: true}, "by      perhaps nft (thread 7) at 08:07:34; not all writers are known"},
	} {
		s := &engine.Snapshot{Drifts: []engine.Drift{{Difference: dataplane.Difference{State: dataplane.Missing, Object: "x"}, Found: at, By: c.by}}}
		var b strings.Builder
		if err := question.DriftOf(s, "", time.Time{}).Write(&b); err != nil {
			t.Fatal(err)
		}
		_, by, _ := strings.Cut(b.String(), "NOT repaired\n")
		if got := strings.TrimSpace(by); got != c.want || !strings.Contains(b.String(), "found   2026-11-22T08:07:34Z") {
			t.Errorf("%+v: %q, want %q in\n%s", c.by, got, c.want, b.String())
		}
	}
}
