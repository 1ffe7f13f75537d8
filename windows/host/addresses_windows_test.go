// SPDX-License-Identifier: Apache-2.0

package host

import "testing"

func TestAddresses(t *testing.T) {
	a := &Addresses{}
	if !a.Changed() {
		t.Error("not read yet")
	}
	all, err := a.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if ip := l.Prefix.Addr(); !l.Prefix.IsValid() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			t.Errorf("%v", l)
		}
	}
	if a.Changed() {
		t.Error("looked just now")
	}
	t.Log(all)
}
