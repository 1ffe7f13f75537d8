// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// What a server does not tell is unknown, and not absent: the sink can tell one from the other.
func TestUnread(t *testing.T) {
	hangs := apitest.Rule{Hang: true}
	fails := apitest.Rule{Status: 500, Reason: metav1.StatusReasonInternalError, Message: "conversion webhook failed"}
	forbids := apitest.Rule{Status: 403, Reason: metav1.StatusReasonForbidden, Message: "no"}
	none, node, cidrs, routes := model.Unread{}, model.Unread{Node: true}, model.Unread{ServiceCIDRs: true}, model.Unread{Routes: true}
	for _, c := range []struct {
		name, resource string
		rule           apitest.Rule
		absent         bool
		begin, lasting model.Unread // with the first Synced; when the server goes on like that
	}{
		{name: "ServiceCIDRs hang", resource: "servicecidrs", rule: hangs, begin: cidrs, lasting: cidrs},
		{name: "ServiceCIDRs fail", resource: "servicecidrs", rule: fails, begin: cidrs, lasting: cidrs},
		{name: "ServiceCIDRs are forbidden", resource: "servicecidrs", rule: forbids, begin: cidrs, lasting: cidrs},
		{name: "there are no ServiceCIDRs", resource: "servicecidrs", absent: true, begin: none, lasting: none},
		{name: "Node hangs", resource: "nodes", rule: hangs, begin: node, lasting: node},
		{name: "Node fails", resource: "nodes", rule: fails, begin: node, lasting: node},
		{name: "Node is forbidden", resource: "nodes", rule: forbids, begin: node, lasting: none},
		{name: "routes hang", resource: "udproutes", rule: hangs, begin: routes, lasting: routes},
		{name: "routes fail", resource: "tcproutes", rule: fails, begin: routes, lasting: routes},
		{name: "grants are forbidden", resource: "referencegrants", rule: forbids, begin: routes, lasting: none},
		{name: "there are no routes", resource: "tcproutes", absent: true, begin: routes, lasting: none},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := apitest.Options{}
			lift := func() {}
			if c.absent {
				o.Absent = []string{c.resource}
			}
			w := newWorld(t, o)
			w.config.GatewayRoutes = true
			if c.begin == none {
				w.limits.nodeWait = time.Minute // nothing is waited for so long, and a busy machine takes a second to answer
			}
			if !c.absent {
				c.rule.Resource = c.resource
				lift = w.server.Fail(c.rule)
			}
			w.run().synced()
			if first := w.sink.unknown(); first[0] != c.begin {
				t.Errorf("unread at the first Synced: %q, want %q", first[0], c.begin)
			}
			last := func(want model.Unread) func() bool {
				return func() bool { all := w.sink.unknown(); return all[len(all)-1] == want }
			}
			w.until("what stays so", func() bool {
				return last(c.lasting)() && (c.rule.Hang || w.resource(c.resource).Err != "")
			})
			if lift(); c.rule.Status == 403 {
				return // it is asked again in ten minutes
			}
			w.until("all is read", last(none))
			w.until("whole", func() bool { synced, _, _ := w.sink.told(); return synced[len(synced)-1] })
		})
	}
}
