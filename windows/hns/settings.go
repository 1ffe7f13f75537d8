// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"log/slog"
	"net/netip"
)

// Settings are what a driver needs besides HNS itself.
type Settings struct {
	Network   string     // the network's name; empty to find it
	Root      string     // the name of the endpoint that represents the node; empty for none
	SourceVIP netip.Addr // of an overlay; the zero value to find it
	DSR       bool       // cluster IPs use DSR, which pods' endpoints must be made for
	Journal   string     // the journal of owned load balancers; empty for none
	Log       *slog.Logger

	// Folder makes the journal's folder, and deletes those of its files that
	// another user has made: the journal decides what is deleted. Nil
	// makes a plain one.
	Folder func(dir string, files ...string) error
	// MAC returns the hardware address of the interface that has an address. Only
	// overlay networks need it.
	MAC func(netip.Addr) (string, error)
	// Instance identifies one run of the HNS service, without a call to it. Nil
	// disables the check.
	Instance func() (uint32, error)
	// SourceVIPFile is where flannel's start scripts leave the source VIP; empty
	// for nowhere.
	SourceVIPFile string
}
