// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"
)

// Only tables that kube-proxy has signed are its own.
func TestKubeProxyTables(t *testing.T) {
	freshNamespace(t)
	runNFT(t, `table ip kube-proxy { comment "rules for kube-proxy"; chain a { counter; }; chain b { jump a; }; }
table ip6 kube-proxy { comment "somebody's own"; }
table ip other { comment "rules for kube-proxy"; }`, "-f", "-")
	left, err := kubeProxy(t.Context())
	if err != nil || len(left.Found) != 1 || left.Found[0] != "nftables table ip kube-proxy" {
		t.Fatalf("found %q, %v", left.Found, err)
	}
	if err := left.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	tables := runNFT(t, "", "list", "tables")
	if strings.Contains(tables, "ip kube-proxy") || !strings.Contains(tables, "ip6 kube-proxy") || !strings.Contains(tables, "ip other") {
		t.Fatalf("left:\n%s", tables)
	}
	if left, err := kubeProxy(t.Context()); err != nil || len(left.Found) != 0 {
		t.Fatalf("found again: %q, %v", left.Found, err)
	}
}
