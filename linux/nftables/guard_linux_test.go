// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"os"
	"testing"
)

// The guard of the host's namespace works: a goroutine that did not leave it is
// told from one that did, also when it was started by one that did.
func TestGuardOfHostNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	freshNamespace(t)
	if currentNamespace() == hostNamespace {
		t.Fatal("a fresh namespace is the host's")
	}
	t.Run("subtest", func(t *testing.T) {
		if currentNamespace() != hostNamespace {
			t.Fatal("a subtest is not in the host's namespace: the comment of freshNamespace is wrong")
		}
	})
}
