// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

const (
	ownTable = "table inet tandem {\n\tchain nat {\n\t}\n}\n"
	cniTable = "table ip nat {\n\tchain CNI-HOSTPORT-DNAT {\n\t}\n}\n"
	kubelet  = "table ip mangle {\n\tchain KUBE-KUBELET-CANARY {\n\t}\n}\n"
	shared   = "table ip filter {\n\tchain KUBE-SERVICES {\n\t}\n}\n"
)

// TestCleaned takes a node as clean when nothing of Tandem's is left and all of others'.
func TestCleaned(t *testing.T) {
	before := parseRules(cniTable + ownTable + kubelet)
	for text, want := range map[string]string{
		cniTable + kubelet:                    "",
		cniTable + ownTable + kubelet:         "left: table inet tandem",
		cniTable + kubelet + shared:           "left: chain KUBE-SERVICES",
		kubelet:                               "rules of others were",
		cniTable + kubelet + "table ip6 x {}": "rules of others were",
	} {
		if err := cleaned(before, parseRules(text)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := cleaned(parseRules(cniTable), parseRules(cniTable)); err == nil {
		t.Error("a node that had nothing of Tandem's is said to be cleaned")
	}
}

// TestWellNodes takes all nodes for well only when each is there, healthy, alike and in the mode.
func TestWellNodes(t *testing.T) {
	const well = `{"node":"node-1","mode":"nftables","healthy":true,"services":4}`
	for _, c := range []struct{ items, want string }{
		{well + `,` + strings.ReplaceAll(well, "node-1", "node-2"), ""},
		{well, "not [node-1 node-2]"},
		{well + `,` + `{"node":"node-2","mode":"nftables","healthy":false,"services":4}`, "not well"},
		{well + `,` + `{"node":"node-2","mode":"nftables","healthy":true,"differs":true,"services":4}`, "not well"},
		{well + `,` + `{"node":"node-2","mode":"iptables","healthy":true,"services":4}`, "not well"},
		{well + `,` + `{"node":"node-2","error":"no answer"}`, "not well"},
	} {
		said, err := wellNodes(`{"apiVersion":"tandem.dev/v1","items":[`+c.items+`]}`, []string{"node-1", "node-2"}, "nftables")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %q", c.items, said, err, c.want)
		}
	}
}
