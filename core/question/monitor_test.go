// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/question"
)

// What is asked for is shown, and counts of what is left out wherever it may be among them.
func TestMonitorFilters(t *testing.T) {
	event := func(n uint64, service, client, verdict string) monitor.Event {
		return monitor.Event{Number: n, Namespace: service[:4], Service: service, Client: client, Verdict: verdict}
	}
	d := &question.Document{Snapshot: &engine.Snapshot{}, Facts: question.Facts{Node: "node-1", Mode: "nftables"}, Seen: &monitor.Part{
		Begun: time.Now(), Next: 7, Forgotten: 3, NotShown: []string{"nothing"}, Events: []monitor.Event{
			event(1, "shop/web", "10.244.0.9:1000", "forward"), event(2, "shop/db", "[fd00::9]:1000", "reject"), event(3, "bank/web", "198.51.100.1:1000", "drop"),
			{Number: 4, Namespace: "shop", LeftOut: 5},
			{Number: 5, LeftOut: 9},
			{Number: 6, Unread: true},
		},
	}}
	for _, tt := range []struct {
		r    question.MonitorRequest
		want string
	}{
		{question.MonitorRequest{}, "[1 2 3 4 5 6]"},
		{question.MonitorRequest{Filter: question.Filter{Namespace: "shop"}}, "[1 2 4 5 6]"},
		{question.MonitorRequest{Filter: question.Filter{Namespace: "bank", Name: "web"}}, "[3 5 6]"},
		{question.MonitorRequest{Verdicts: []string{"reject", "drop"}}, "[2 3 4 5 6]"},
		{question.MonitorRequest{From: "10.244.7.7/16"}, "[1 4 5 6]"},
		{question.MonitorRequest{From: "fd00::9"}, "[2 4 5 6]"},
	} {
		m, err := question.WatchConnections().Answer(t.Context(), d, tt.r)
		var numbers []uint64
		for _, e := range m.Events {
			numbers = append(numbers, e.Number)
		}
		if fmt.Sprint(numbers) != tt.want || err != nil || m.Next != 7 || m.Forgotten != 3 || m.Node != "node-1" || len(m.NotShown) != 1 {
			t.Errorf("%+v: %v, %v; want %s", tt.r, numbers, err, tt.want)
		}
	}
	for _, r := range []question.MonitorRequest{{From: "pod"}, {Verdicts: []string{"pass"}}, {Filter: question.Filter{Name: "["}}} {
		if _, err := question.WatchConnections().Answer(t.Context(), d, r); err == nil {
			t.Errorf("%+v is answered", r)
		}
	}
	if _, err := question.WatchConnections().Answer(t.Context(), &question.Document{}, question.MonitorRequest{}); err == nil {
		t.Error("a snapshot sees connections")
	}
}
