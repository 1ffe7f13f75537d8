// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The names that everyone knows: kube-proxy gives the same.
func TestNamesAreKubeProxys(t *testing.T) {
	id := model.PortID{Service: model.ServiceName{Namespace: "ns1", Name: "svc1"}, Name: "p80", Proto: model.TCP}
	if got := prefixCluster + portHash(id); got != "KUBE-SVC-XPGD46QRK7WJZT7O" {
		t.Errorf("ns1/svc1:p80 has %s", got)
	}
	if got := endpointChain(id, netip.MustParseAddrPort("10.180.0.1:80")); got != "KUBE-SEP-SXIVWICOYRO3J4NJ" {
		t.Errorf("its endpoint has %s", got)
	}
	kubernetes := model.PortID{Service: model.ServiceName{Namespace: "default", Name: "kubernetes"}, Name: "https", Proto: model.TCP}
	if got := prefixCluster + portHash(kubernetes); got != "KUBE-SVC-NPX46M4PTMTKRN6Y" {
		t.Errorf("default/kubernetes:https has %s", got)
	}
}

// A chain's name has at most 28 bytes, and says whose it is.
func TestClasses(t *testing.T) {
	for name, want := range map[string]class{
		"KUBE-SERVICES": shared, "KUBE-NODEPORTS": shared, "KUBE-POSTROUTING": whole, "KUBE-MARK-MASQ": whole,
		"KUBE-SVC-NPX46M4PTMTKRN6Y": whole, "KUBE-SVC-NPX46M4PTMTKRN6": unowned, "KUBE-SVC-npx46m4ptmtkrn6y": unowned,
		"KUBE-MARK-DROP": unowned, "KUBE-FIREWALL": unowned, "KUBE-KUBELET-CANARY": unowned, "KUBE-PROXY-CANARY": unowned,
		"PREROUTING": unowned, "AWS-SNAT-CHAIN-0": unowned, "": unowned, "KUBE-IP-10.0.0.0/8": shared,
	} {
		if got := classOf(name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	c := NewCompiler(Options{})
	emit := func(k Key, _ Value) {
		if len(k.Chain) > 28 {
			t.Errorf("%s is too long", k.Chain)
		}
	}
	for _, at := range []string{"255.255.255.255:65535", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"} {
		for kind := range model.KindNodePort + 1 {
			f := model.Frontend{Kind: kind, At: netip.MustParseAddrPort(at), Restricted: kind != model.KindNodePort}
			pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: f.At, Local: true}}}
			f.On = [...]model.Action{{Pool: pool}, {Pool: pool, SNAT: true}, {Verdict: model.Drop}}
			p := &model.Port{Frontends: []model.Frontend{f}, SessionAffinity: time.Second, HealthPort: 65535}
			p.ID = model.PortID{Proto: model.SCTP, Family: model.FamilyOf(f.At.Addr())}
			c.Port(&model.Host{}, p, emit)
		}
	}
	c.Base(&model.Host{}, emit)
}

// What is written is read back as the same rule.
func TestRulesComeBack(t *testing.T) {
	for _, f := range model.Families() {
		for _, table := range tables() {
			want := xtables.List(probeRules(f, table, true)...)
			if got := xtables.List(slices.Collect(want.All())...); got != want {
				t.Errorf("%q is read as %q", want, got)
			}
			for r := range want.All() {
				if r.Unparsed != "" {
					t.Errorf("%q is not understood", r)
				}
			}
		}
	}
}
