// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// What kube-proxy has left is found and removed where nothing of it is ours, and
// the rules of others stay.
func TestKubeProxyIsFoundAndRemoved(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		k.restore(model.IPv4, "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]\n:AWS-SNAT-CHAIN-0 - [0:0]\n"+
			"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n"+
			"-A POSTROUTING -j AWS-SNAT-CHAIN-0\n"+
			"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O\nCOMMIT\n")
		left, err := kubeProxy(t.Context())
		if err != nil || len(left.Found) != 1 || !strings.Contains(left.Found[0], string(k.tools.Variant)) {
			t.Fatalf("found %q, %v", left.Found, err)
		}
		if err := left.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := k.save(); strings.Contains(now, "KUBE-") || !strings.Contains(now, "-A POSTROUTING -j AWS-SNAT-CHAIN-0") {
			t.Errorf("left:\n%s", now)
		}
		k.site(3).start()
		if left, err := kubeProxy(t.Context()); err != nil || len(left.Found) != 0 {
			t.Errorf("our own rules are taken for kube-proxy's: %q, %v", left.Found, err)
		}
	})
}

// Where kube-proxy has replaced Tandem in the same chains, cleanup removes the
// chains that only Tandem creates, and none of kube-proxy's.
func TestCleanupAfterKubeProxyTookOver(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		k.site(3).start()
		if now := k.save(); !strings.Contains(now, vipTree.prefix) {
			t.Fatalf("no tree:\n%s", now)
		}
		k.restore(model.IPv4, "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]\n"+
			"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O\n"+
			"-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n"+
			"*filter\n:KUBE-SERVICES - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\nCOMMIT\n")
		for range 2 {
			if err := remove(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		now := k.save()
		for _, tree := range trees {
			if strings.Contains(now, tree.prefix) || strings.Contains(now, chainUnserved) {
				t.Fatalf("left of Tandem:\n%s", now)
			}
		}
		for _, theirs := range []string{"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES", "-j KUBE-SVC-XPGD46QRK7WJZT7O", "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", ":KUBE-PROXY-FIREWALL"} {
			if !strings.Contains(now, theirs) {
				t.Errorf("removed: %s\n%s", theirs, now)
			}
		}
		if left, err := kubeProxy(t.Context()); err != nil || len(left.Found) != 1 {
			t.Errorf("kube-proxy's rules are not found: %q, %v", left.Found, err)
		}
	})
}
