// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/track"
)

// Programs that have written are named as what is known of them: nobody is accused for want of a
// record of others.
func TestDriftNamesCandidates(t *testing.T) {
	at := time.Date(2026, 11, 22, 8, 7, 34, 0, time.UTC)
	nft, firewalld := dataplane.Writer{Name: "nft", PID: 7, At: at}, dataplane.Writer{Name: "firewalld", PID: 9, At: at}
	for _, c := range []struct {
		by   dataplane.Candidates
		want string
	}{
		{dataplane.Candidates{}, ""},
		{dataplane.Candidates{Incomplete: true}, ""},
		{dataplane.Candidates{Writers: []dataplane.Writer{nft}}, "by      nft (thread 7) at 08:07:34"},
		{dataplane.Candidates{Writers: []dataplane.Writer{nft, firewalld}}, "by      one of nft (thread 7) at 08:07:34, firewalld (thread 9) at 08:07:34"},
		{dataplane.Candidates{Writers: []dataplane.Writer{nft}, Incomplete: true}, "by      perhaps nft (thread 7) at 08:07:34; not all writers are known"},
	} {
		s := &engine.Snapshot{Drifts: []engine.Drift{{Difference: dataplane.Difference{State: dataplane.Missing, Object: "x"}, Found: at, By: c.by}}}
		b, d := newScreen(nil), question.DriftOf(s, "", time.Time{})
		writeDrift(b, &d)
		_, by, _ := strings.Cut(b.text.String(), "NOT repaired\n")
		if got := strings.TrimSpace(by); got != c.want || !strings.Contains(b.text.String(), "found   2026-11-22T08:07:34Z") {
			t.Errorf("%+v: %q, want %q in\n%s", c.by, got, c.want, b.text.String())
		}
	}
}

// "No drift" is said of Services that there are, by name, and never of a mistyped one: by a snapshot, neither.
func TestDriftOfOneService(t *testing.T) {
	web := model.ServiceName{Namespace: "ns", Name: "web"}
	s := &engine.Snapshot{Services: []*track.View{{Object: &model.Service{Name: web}}}}
	gone := question.Drifted{Difference: question.Difference{Object: "x", Service: "ns/gone"}}
	for _, document := range []*question.Document{
		{Snapshot: s},
		{Snapshot: s, Recorded: &question.Recorded{Drift: question.Drift{Looked: true, Before: []question.Drifted{gone}}}},
	} {
		find := func(service string) (question.Drift, error) {
			return question.FindDrift().Answer(t.Context(), document, question.DriftRequest{Service: service, Look: true})
		}
		d, err := find("ns/web")
		text := newScreen(nil)
		if writeDrift(text, &d); err != nil || !strings.HasPrefix(text.text.String(), "no drift of Service ns/web: ") {
			t.Errorf("%v: %s", err, text.text.String())
		}
		for _, name := range []string{"ns/wbe", "web"} {
			if _, err := find(name); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("recorded %t: %s: %v", document.Recorded != nil, name, err)
			}
		}
		if _, err := find(""); err != nil {
			t.Error(err)
		}
		if _, err := find("ns/gone"); document.Recorded != nil && err != nil { // it has drifted before it was deleted
			t.Error(err)
		}
	}
}
