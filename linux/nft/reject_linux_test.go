// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
)

// What reports rejected packets is removed with its sockets, as the kernel closes them when a process is killed.
func TestRejectionsEndWithTheirProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread() // and the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	chains := func() (n int) {
		t.Helper()
		all, err := BaseChains(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if strings.HasPrefix(c.Table, monitorTable) {
				n++
			}
		}
		return n
	}
	for by, want := range map[Reporting]int{AllReport: 4, RulesDo: 8, NoneReport: 8} {
		r, err := OpenRejections(by)
		if errors.Is(err, dataplane.ErrAbsent) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Trace(t.Context(), []monitor.Frontend{
			{Namespace: "shop", Proto: model.TCP, At: netip.MustParseAddrPort("10.96.0.11:80")},
			{Namespace: "shop", Proto: model.TCP, At: netip.MustParseAddrPort("[::]:30080")},
		}); err != nil {
			t.Error(err)
		}
		if err := Sweep(t.Context()); err != nil { // as another process does
			t.Error(err)
		}
		if n := chains(); n != want {
			t.Errorf("%v: %d base chains, want %d", by, n, want)
		}
		if r.table.flags != tableOwner {
			t.Skip("this kernel does not tie a table to a socket: Linux before 5.12")
		}
		if err := errors.Join(r.driver.Close(), r.events.Close(), r.asks.Close()); err != nil {
			t.Error(err)
		}
		if n := chains(); n != 0 {
			t.Errorf("%v: %d base chains are left", by, n)
		}
	}
}
