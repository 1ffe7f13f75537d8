// SPDX-License-Identifier: Apache-2.0

package nftables

import "testing"

// nft itself takes every awkward name, and lists what the driver wrote of it.
func TestAwkwardNames(t *testing.T) {
	for _, name := range awkward {
		t.Run("", func(t *testing.T) {
			freshNamespace(t)
			want := compile(t, testHost, awkwardPort(name, name, name))
			runNFT(t, table.Script(want), "-c", "-f", "-")
			d := openDriver(t)
			mend(t, d, want)
			runNFT(t, "", "list", "ruleset")
		})
	}
}
