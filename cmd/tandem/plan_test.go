// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/question"
)

const rangesYAML = `apiVersion: v1
kind: Service
metadata: {name: lb}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.20
  externalTrafficPolicy: Local
  healthCheckNodePort: 30500
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.20}]}}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
`

// What a mode does not program is not shown as balanced.
func TestPlanShowsWhatTheModePrograms(t *testing.T) {
	dir := folder(t, map[string]string{"lb.yaml": rangesYAML})
	args := []string{"plan", "--manifests", dir, "--node", "node-1"}
	_, stdout, stderr := tandem(t, append(args, "--proxy-mode", "kernelspace")...)
	const missing = "  203.0.113.20:80/tcp  load balancer IP, not programmed, sources 198.51.100.0/24\n    ! not programmed: HNS cannot block clients"
	if !strings.Contains(stdout, missing) {
		t.Errorf("no %q in:\n%s%s", missing, stdout, stderr)
	}
	_, after, _ := strings.Cut(stdout, missing)
	if next, _, _ := strings.Cut(after, "\n  "); strings.Contains(next, "from ") {
		t.Errorf("a frontend that is not programmed has actions:\n%s", stdout)
	}
	_, stdout, _ = tandem(t, append(args, "--proxy-mode", "nftables")...)
	for _, part := range []string{
		"default/lb, health checks on port 30500\n", "  203.0.113.20:80/tcp  load balancer IP, sources 198.51.100.0/24, affinity 10m0s\n    from ",
	} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %q in:\n%s", part, stdout)
		}
	}
	_, stdout, _ = tandem(t, append(args, "--proxy-mode", "kernelspace", "-o", "json")...)
	var d question.Plan
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || d.Services[0].HealthCheckNodePort != 30500 {
		t.Fatalf("%v\n%s", err, stdout)
	}
	i := slices.IndexFunc(d.Services[0].Fronts, func(f question.PlanFrontend) bool { return f.Address == "203.0.113.20:80" })
	if f := d.Services[0].Fronts[i]; !f.Missing || len(f.Answers) > 0 || len(f.Gaps) == 0 {
		t.Errorf("%+v", f)
	}
}

func TestPlanParts(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML})
	code, _, stderr := tandem(t, "plan", "--manifests", dir, "--node", "n", "--proxy-mode", "ipvs", "-o", "native", "--part", "nft")
	if code != exitUsage || !strings.Contains(stderr, "mode ipvs has ipset, iptables-restore, ip6tables-restore, ip-4") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// Failover programs nothing by itself: the rules of every mode are the same with and
// without it.
func TestFailoverHasNoRules(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML, "lb.yaml": rangesYAML})
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace", "kernelspace"} {
		rules := map[string]bool{}
		for _, failover := range []string{"off", "observe", "auto", "on"} {
			_, stdout, stderr := tandem(t, "plan", "--manifests", dir, "--node", "node-1", "--proxy-mode", mode, "--endpoint-failover", failover, "-o", "native")
			if rules[stdout] = true; stdout == "" {
				t.Error(stderr)
			}
		}
		if len(rules) != 1 {
			t.Errorf("mode %s has %d kinds of rules", mode, len(rules))
		}
	}
}

// A gap of a mode in endpoint failover is reported once where it was requested, and not at
// all where it was not.
func TestFailoverThatTheModeCannotDo(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML, "lb.yaml": rangesYAML})
	const text = "endpoints that stop answering are not ejected"
	for _, c := range []struct {
		mode, failover string
		plan, explain  int
	}{
		{"kernelspace", "auto", 0, 0},
		{"kernelspace", "off", 0, 0},
		{"kernelspace", "on", 1, 1},
		{"kernelspace", "observe", 1, 1},
		{"nftables", "on", 0, 0},
	} {
		args := []string{"--manifests", dir, "--node", "node-1", "--proxy-mode", c.mode, "--endpoint-failover", c.failover}
		_, plan, stderr := tandem(t, append([]string{"plan"}, args...)...)
		_, explain, more := tandem(t, append([]string{"explain", "192.0.2.200", "10.96.0.20:80"}, args...)...)
		if n, m := strings.Count(plan, text), strings.Count(explain, text); n != c.plan || m != c.explain {
			t.Errorf("%s, %s: printed %d times by plan and %d times by explain:\n%s%s\n%s%s", c.mode, c.failover, n, m, plan, stderr, explain, more)
		}
	}
}

// A preview ends with 1 where something was rejected, whatever else would change, and
// with 3 where something would change.
func TestHowAPreviewEnds(t *testing.T) {
	changes := question.Preview{Services: []question.PreviewService{{Name: "shop/web"}}}
	rejected := changes
	rejected.Problems = []question.Problem{{Reason: "x"}}
	for _, tt := range []struct {
		manifests int // rejected
		preview   question.Preview
		code      int
	}{
		{0, question.Preview{}, exitOK}, {0, changes, exitDiffers}, {1, question.Preview{}, exitFailure}, {1, changes, exitFailure}, {0, rejected, exitFailure},
	} {
		if code := exitCode(previewError(tt.manifests, tt.preview)); code != tt.code {
			t.Errorf("%d problems with manifests, %+v: exit code %d, want %d", tt.manifests, tt.preview, code, tt.code)
		}
	}
	// Not all problems reject something: a Node that is not there, say.
	if one, two := problemsError(1).Error(), problemsError(2).Error(); one != "1 problem, see above" || two != "2 problems, see above" {
		t.Errorf("%q, %q", one, two)
	}
}

// Manifests as people apply them are planned with placeholders for what the API server will assign, which is said beside
// the plan and is no problem. To serve them without an API server is one.
func TestPlanOfManifestsAsApplied(t *testing.T) {
	const service = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, ports: [{name: http, port: 80, nodePort: 0}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
---
`
	dir := folder(t, map[string]string{"a.yaml": service + nodeYAML("node-1", "1")})
	for form, part := range map[string]string{"summary": "  10.96.255.254:80/tcp  cluster IP\n", "table": "*:32767/tcp", "json": `"Service shop/web: cluster IP 10.96.255.254, node port 32767 as a placeholder for`, "native": "table ip tandem"} {
		code, out, stderr := tandem(t, "plan", "--manifests", dir, "--node", "node-1", "--proxy-mode", "nftables", "-o", form)
		if code != exitOK || !strings.Contains(out, part) || stderr != "! Service shop/web: cluster IP 10.96.255.254, node port 32767 as a placeholder for what the API server will assign\n" {
			t.Errorf("%s: exit code %d, %s\n%s", form, code, stderr, out)
		}
	}
	if code, out, stderr := tandem(t, "explain", "--manifests", dir, "--node", "node-1", "--proxy-mode", "nftables", "host", "shop/web:80"); code != exitFailure || !strings.Contains(stderr, "no Service shop/web has an address here") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
}
