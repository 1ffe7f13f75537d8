// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/linux/nft"
)

// Commands that this process runs are no other programs, though they have ended before the
// kernel's notices are read; those that anybody else runs are, whatever their names.
func TestOwnCommandsAreNoOtherWriters(t *testing.T) {
	found, err := FindTools(t.Context())
	if err != nil {
		t.Skip(err)
	}
	tools := variant(t, found, NFT)
	enterNetwork(t)
	w, err := nft.OpenWriters() // nobody listens: notices are read when they are asked for
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	write := func(ctx context.Context) (names []string) {
		t.Helper()
		before := time.Now()
		for _, f := range tools.Installed() {
			if _, err := run(ctx, nil, tools.Paths[f].Command, "-t", "nat", "-N", "KUBE-TEST"); err != nil {
				t.Fatal(err)
			}
			if err := tools.Restore(ctx, f, []byte("*nat\n-X KUBE-TEST\nCOMMIT\n")); err != nil {
				t.Fatal(err)
			}
		}
		for _, one := range w.Since(before).Writers {
			names = append(names, one.Name)
		}
		return names
	}
	if names := write(w.Own(t.Context())); len(names) > 0 {
		t.Errorf("named as other programs: %v", names)
	}
	if names := write(t.Context()); len(names) < 2*len(tools.Installed()) {
		t.Errorf("of %d commands of others only %v are named", 2*len(tools.Installed()), names)
	}
}
