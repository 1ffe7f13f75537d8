package iptables

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// iptables-restore takes a read that is interrupted for the end of its script,
// and interrupts itself: see inMemory. A pipe would fail here, after a second.
func TestASlowRestoreIsNotCutShort(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		script := "*nat\n:KUBE-SLOW - [0:0]\n" + strings.Repeat("# a comment\n", 100_000) + "COMMIT\n"
		if _, err := run(t.Context(), []byte(script), "/bin/sh", "-c", "test -f /dev/stdin"); err != nil {
			t.Errorf("a script is not read from a file: %v", err)
		}
		k.restore(model.IPv4, script)
		if !strings.Contains(k.save(), ":KUBE-SLOW") {
			t.Error("not all of the script was done")
		}
	})
}
