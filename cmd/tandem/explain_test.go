// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

// explain answers about manifests in every mode, without privileges and with no tandem
// running, and names objects for it.
func TestExplainManifests(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML, "node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: \"n\"}\nspec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n"})
	flags := []string{"explain", "--manifests", dir, "--node", "n", "--cluster-cidr", "10.244.1.0/24", "-o", "json"}
	for _, mode := range platform.Names()[1:] {
		code, out, errs := tandem(t, append(flags, "--proxy-mode", mode, "pod", "default/web:http")...)
		var e question.Explanation
		if err := json.Unmarshal([]byte(out), &e); code != exitOK || err != nil {
			t.Fatalf("%s: %d, %v: %s", mode, code, err, errs)
		}
		if e.Outcome != "forward" || len(e.Endpoints) != 2 || e.To != "10.96.0.10:80" || e.Service != "default/web" || len(e.Objects) == 0 || len(e.Steps) < 4 {
			t.Errorf("%s: %+v", mode, e)
		}
	}
	for line, want := range map[string]string{
		"pod 10.96.0.10:81":               "\"outcome\": \"reject\"",
		"outside 198.51.100.1:80":         "\"outcome\": \"pass\"",
		"pod default/web:90":              "no port \"90\" in Service default/web: choose http 80/tcp",
		"pod default/nothing":             "no Service default/nothing has an address here",
		"nobody default/web":              "want host, pod, outside or an address",
		"2001:db8::1 10.96.0.10:80":       "two IP families",
		"pod 10.96.0.10:80/udp":           "\"outcome\": \"reject\"",
		"192.0.2.1 10.96.0.10:80":         "\"result\": \"host\"",
		"203.0.113.9 default/web:80":      "\"result\": \"outside\"",
		"10.244.1.3%veth7 default/web:80": "hairpin",
	} {
		_, out, errs := tandem(t, append(flags, strings.Fields(line)...)...)
		if !strings.Contains(out+errs, want) {
			t.Errorf("%s: no %q in %s%s", line, want, out, errs)
		}
	}
	if code, _, errs := tandem(t, "explain", "pod"); code != exitUsage {
		t.Errorf("one argument: %d, %s", code, errs)
	}
}

// explain names the route of a port, and says why a backend of another namespace is not
// used until a ReferenceGrant allows it.
func TestExplainRoute(t *testing.T) {
	far := strings.NewReplacer("{name: web}", "{name: far, namespace: other}", "{name: web-1, labels: {kubernetes.io/service-name: web}}", "{name: far-1, namespace: other, labels: {kubernetes.io/service-name: far}}",
		"10.96.0.10", "10.96.0.13", "10.244.1.", "10.244.2.").Replace(webYAML)
	files := map[string]string{
		"web.yaml": webYAML, "far.yaml": far,
		"node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: \"n\"}\nspec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n",
		"route.yaml": `apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: split, namespace: default}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: 80, weight: 1}, {name: far, port: 80, namespace: other, weight: 3}]}]
`,
	}
	const refused = "no ReferenceGrant in namespace other lets TCPRoutes of namespace default refer to it"
	for _, granted := range []bool{false, true} {
		if granted {
			files["grant.yaml"] = `apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: routes, namespace: other}
spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: default}], to: [{group: "", kind: Service}]}
`
		}
		_, out, errs := tandem(t, "explain", "--manifests", folder(t, files), "--node", "n", "--cluster-cidr", "10.244.1.0/24", "--proxy-mode", "nftables", "pod", "default/web:http")
		if !strings.Contains(out, "backends of TCPRoute default/split") || strings.Contains(out, refused) == granted || strings.Contains(out, "\n  10.244.2.2:8080") != granted {
			t.Errorf("granted %t: %s%s", granted, out, errs)
		}
	}
}

// Where a real packet fares otherwise than the objects say, the trace does not say that all is the same.
func TestTraceDoesNotContradictItself(t *testing.T) {
	of := question.Trace{Verdict: question.AsExplained, Live: &question.Live{Client: "10.244.1.10", Outcome: "drop", Difference: "outcome drop, must be forward"}}
	text := func() string {
		var b bytes.Buffer
		s := newScreen(&b)
		writeTrace(s, &of)
		_ = s.flush()
		return b.String()
	}
	if out := text(); strings.Contains(out, "SAME") || strings.Count(out, "LIVE DIFFERS") != 1 || !strings.Contains(out, "drop from 10.244.1.10") {
		t.Error(out)
	}
	of.Verdict = question.NotSame
	if out := text(); !strings.Contains(out, "\nDIFFERS: the data plane does something else\nLIVE DIFFERS: outcome drop") || strings.Count(out, "LIVE DIFFERS") != 1 {
		t.Error(out)
	}
	of.Verdict = question.AsExplained
	of.Live.Difference = ""
	if out := text(); !strings.Contains(out, "SAME") || strings.Contains(out, "DIFFERS") {
		t.Error(out)
	}
}
